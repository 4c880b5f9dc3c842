"""Login through a provider: an ID token is valid only from it, now, for this login."""

import base64
from urllib.parse import urlsplit

import pytest

from fedloom.protocol import settings
from fedloom.protocol.errors import UsageError
from fedloom.server import config
from fedloom.server.access import oidc, oidc_http
from fedloom.server.ledger.access.tables import audit
from fedloom.server.oidc_config import OidcConfig
from support.contexts import rows_of
from support.door import Door
from support.provider import SECRET, Provider
from support.visitor import Visitor

VERIFIED = {"email": "ann@example.org", "email_verified": True}


@pytest.fixture(scope="module")
def provider():
    """A provider that knows one user."""
    with Provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def door(tmp_path_factory, provider):
    """A server that uses the provider."""
    state = tmp_path_factory.mktemp("door") / "state"
    state.mkdir()
    (state / "oidc.secret").touch(mode=0o600)
    (state / "oidc.secret").write_text(f"{SECRET}\n")
    settings = OidcConfig(
        issuer=provider.issuer, client_id="fedloom", client_secret_file="oidc.secret",
        label="Example SSO", viewer=("staff",), operator=("fl-operators",), admin=("fl-admins",),
    )  # fmt: skip
    with Door(state, console="127.0.0.1:0", provider=settings) as door:
        yield door


@pytest.fixture(autouse=True)
def honest(provider, door):
    """Each test begins with an honest provider without cached documents."""
    provider.lie = ""
    provider.claims = VERIFIED | {"groups": ["staff", "fl-operators"]}
    door.app.state.context.gate.oidc._provider._kept.clear()


def _away(visitor, there="/"):
    answer = visitor.ask("GET", f"/login/oidc?next={there}")
    assert answer.status == 303, answer
    return answer.headers["location"]


def _back(visitor, url):
    parts = urlsplit(url)
    return visitor.ask("GET", f"{parts.path}?{parts.query}")


def _log_in(door, provider):
    visitor = Visitor(door.site)
    return visitor, _back(visitor, provider.log_in(_away(visitor)))


def test_login_through_the_provider(door, provider):
    """With the highest scope of the groups, back to the requested path, and audited."""
    visitor = Visitor(door.site)
    answer = _back(visitor, provider.log_in(_away(visitor, "/runs")))
    assert (answer.status, answer.headers["location"]) == (303, "/runs")
    me = visitor.ask("GET", "/v1/me").document
    assert (me["name"], me["scope"], me["how"]) == ("ann@example.org", "operator", "oidc")
    assert visitor.ask("POST", "/v1/tokens", document={}).status == 403
    newest = rows_of(door.contexts.ledger, audit.select().order_by(audit.c.id.desc()).limit(1))[0]
    assert (newest["action"], newest["who"], newest["how"]) == ("login", "ann@example.org", "oidc")
    assert "Example SSO" in Visitor(door.site).ask("GET", "/login").text


def test_secret_is_sent_only_to_the_token_endpoint(door, provider):
    """In its header; a code is useless without the verifier."""
    _log_in(door, provider)
    form, authorization = provider.seen[-1]
    pair = base64.b64decode(authorization.removeprefix("Basic ")).decode()
    assert pair == "fedloom:the%20client%27s%20secret"
    assert form["code_verifier"]
    assert SECRET not in Visitor(door.site).ask("GET", "/login").text


@pytest.mark.parametrize(
    "lie",
    ["iss", "aud", "azp", "no azp", "exp", "no exp", "nonce", "no nonce", "key", "hs256", "none",
     "nonsense", "iss of the answer"],
)  # fmt: skip
def test_forged_answer_is_refused(door, provider, lie):
    """Another issuer, audience, time, login or signature."""
    provider.lie = lie
    visitor, answer = _log_in(door, provider)
    assert answer.status == 401
    assert door.site.cookie not in visitor.cookies
    assert visitor.ask("GET", "/v1/me").status == 401


@pytest.mark.parametrize("lie", ["issuer", "no json", "status"])
def test_provider_errors_are_503(door, provider, lie):
    """With a sentence on the form."""
    provider.lie = lie
    answer = Visitor(door.site).ask("GET", "/login/oidc")
    assert answer.status == 503
    assert "login provider" in answer.text


@pytest.mark.parametrize(
    "claims",
    [
        VERIFIED,
        VERIFIED | {"groups": ["others"]},
        VERIFIED | {"groups": {"fl-admins": True}},
        {"email_verified": True, "groups": ["fl-admins"]},
        VERIFIED | {"email": "", "groups": ["fl-admins"]},
        VERIFIED | {"email_verified": False, "groups": ["fl-admins"]},
        VERIFIED | {"email_verified": "false", "groups": ["fl-admins"]},
        {"email": "ann@example.org", "groups": ["fl-admins"]},
    ],
)
def test_user_without_a_mapped_claim_is_refused(door, provider, claims):
    provider.claims = claims
    visitor, answer = _log_in(door, provider)
    assert (answer.status, door.site.cookie in visitor.cookies) == (401, False)


def test_answer_is_valid_once_in_the_browser_that_began(door, provider):
    """A link with another user's answer opens no session."""
    victim, attacker = Visitor(door.site), Visitor(door.site)
    back = provider.log_in(_away(attacker))
    assert _back(victim, back).status == 401
    _away(victim)
    assert _back(victim, provider.log_in(_away(attacker))).status == 401
    honest = Visitor(door.site)
    back = provider.log_in(_away(honest))
    assert _back(honest, back).status == 303
    assert _back(honest, back).status == 401


def test_changed_keys_are_fetched_once(door, provider, monkeypatch):
    """A provider may rotate its keys at any time."""
    assert _log_in(door, provider)[1].status == 303
    provider.change_keys()
    assert _log_in(door, provider)[1].status == 401  # requests are limited
    monkeypatch.setattr(oidc_http, "RENEW_S", 0.0)
    assert _log_in(door, provider)[1].status == 303


def test_unfinished_logins_are_dropped(door, provider, monkeypatch):
    """Memory is bounded, and an old answer is refused."""
    monkeypatch.setattr(oidc, "MAX_PENDING", 3)
    visitors = [Visitor(door.site) for _ in range(5)]
    urls = [provider.log_in(_away(visitor)) for visitor in visitors]
    assert len(door.app.state.context.gate.oidc._pending) == 3
    found = [_back(v, url).status for v, url in zip(visitors, urls, strict=True)]
    assert found == [401, 401, 303, 303, 303]


def test_login_that_took_too_long_is_refused(door, provider, monkeypatch):
    visitor = Visitor(door.site)
    url = provider.log_in(_away(visitor))
    monkeypatch.setattr(oidc, "PENDING_S", -1.0)
    assert _back(visitor, url).status == 401
    assert door.site.cookie not in visitor.cookies


def test_one_address_cannot_displace_other_logins(door, provider, monkeypatch):
    """An address that begins a thousand logins drops its own."""
    monkeypatch.setattr(oidc, "MAX_PENDING", 3)
    monkeypatch.setattr(oidc, "MAX_OF_NETWORK", 2)
    gate, visitor = door.app.state.context.gate, Visitor(door.site)
    url = provider.log_in(_away(visitor))
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(type(gate), "address", lambda *_: "192.0.2.7")
        for _ in range(5):
            _away(Visitor(door.site))
    assert _back(visitor, url).status == 303


def test_provider_routes_are_404_without_a_provider(tmp_path):
    with Door(tmp_path / "state", console="127.0.0.1:0") as door:
        for path in ("/login/oidc", "/login/oidc/callback?code=x&state=y"):
            assert Visitor(door.site).ask("GET", path).status == 404


SETTINGS = {"issuer": "https://sso.example", "client_id": "x", "viewer": ["a"]}


def test_settings_are_read_from_server_toml(tmp_path):
    """In a separate table, which other commands keep."""
    config.write(tmp_path, config.ServerConfig())
    path = tmp_path / config.FILE
    path.write_text(path.read_text() + '\n[oidc]\nissuer = "https://sso.example"\n'
                    'client_id = "x"\nadmin = ["fl"]\n')  # fmt: skip
    assert config.load(tmp_path).oidc.admin == ("fl",)


@pytest.mark.parametrize(
    "change",
    [
        {"issuer": "http://sso.example"}, {"issuer": "sso"}, {"client_id": ""}, {"viewer": []},
        {"viewer": "staff"}, {"viewer": [1]}, {"scopes": ["email"]}, {"secret": "x"},
        {"label": 3}, {"issuer": None},
    ],
)  # fmt: skip
def test_invalid_settings_are_refused(change):
    """Plain HTTP to another machine, no allowed values, a secret among the settings."""
    with pytest.raises(UsageError):
        _build(SETTINGS | change)
    assert _build(SETTINGS).viewer == ("a",)


def _build(values):
    return settings.build(OidcConfig, settings.from_table(OidcConfig, values))
