"""Login over TCP by password, link and token, and everything that is refused."""

import asyncio
import http.client
import json
import logging
import time

import pytest

from fedloom.server.access import gate, passwords, secrets, shield
from fedloom.server.access.gate import Gate
from fedloom.server.ledger.access import accounts
from fedloom.server.ledger.access.accounts import Scope
from support.contexts import rows_of
from support.patience import PATIENCE_S
from support.visitor import Visitor

PASSWORD = "correct horse battery"


def _audited(door):
    from fedloom.server.ledger.access.tables import audit

    asyncio.run_coroutine_threadsafe(door.contexts.audit_log.store(), door._loop).result(10)
    return [(row["action"], row["who"]) for row in rows_of(door.contexts.ledger, audit.select())]


# ---- passwords -------------------------------------------------------------------------------


def test_login_opens_a_session_and_logout_ends_it(door, add_user):
    """Scripts and other sites cannot read the cookie; after the logout it is invalid."""
    ann = add_user()
    me = ann.ask("GET", "/v1/me").document
    assert me == {"name": "ann", "scope": "admin", "how": "session", "studies": None}
    assert ann.ask("POST", "/logout").status == 403
    kept = dict(ann.cookies)
    answer = ann.ask("POST", "/logout", form={"csrf_token": secrets.csrf_token(ann.session)})
    assert (answer.status, ann.cookies) == (303, {})
    ann.cookies = kept
    assert ann.ask("GET", "/v1/me").status == 401
    assert _audited(door) == [("login", "ann"), ("logout", "ann")]


def test_cookie_has_every_protection(door, add_user):
    """HttpOnly, SameSite, no domain, the whole path, an expiry."""
    add_user()
    answer = Visitor(door.site).log_in("ann", PASSWORD)
    cookie = answer.headers["set-cookie"].lower()
    assert "; httponly" in cookie
    assert "; samesite=lax" in cookie
    assert "; path=/" in cookie
    assert f"; max-age={int(accounts.LIFE_S)}" in cookie
    assert "domain" not in cookie


def test_ledger_holds_no_session_and_no_password(door, add_user):
    """A reader of the file cannot log in with its contents."""
    ann = add_user()
    data = b"".join(p.read_bytes() for p in door.directory.glob("ledger.sqlite*"))
    assert ann.session.encode() not in data
    assert PASSWORD.encode() not in data
    assert secrets.kept(ann.session).encode() in data


def test_wrong_logins_get_equal_refusals(door, add_user):
    """Neither the answer nor the trail reveals whether the name exists, or the password."""
    add_user()
    wrong = (("ann", "wrong one"), ("bob", PASSWORD), ("", ""), ("ann", ""), ("a\nb", "xyzzy"))
    for name, password in wrong:
        visitor = Visitor(door.site)
        answer = visitor.log_in(name, password)
        assert answer.status == 401
        assert "Wrong name or password" in answer.text
        assert visitor.cookies == {}
        assert not password or password not in answer.text
    assert [action for action, _ in _audited(door)] == ["login", *["login.fail"] * len(wrong)]


def test_guessing_is_slowed_for_the_name_until_a_success(door, add_user, monkeypatch):
    """From any address; guesses of other people lock a user out for at most a minute."""
    add_user()
    guesser = Visitor(door.site)
    found = [guesser.log_in("ann", f"guess {number}").status for number in range(7)]
    assert found == [401] * 6 + [429]
    refused = guesser.log_in("ann", PASSWORD)
    assert (refused.status, int(refused.headers["retry-after"]) > 0) == (429, True)
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + 61)
    assert guesser.log_in("ann", PASSWORD).status == 303
    assert guesser.log_in("ann", "guess").status == 401


def test_guessing_many_names_is_slowed_for_the_address(door):
    guesser = Visitor(door.site)
    found = [guesser.log_in(f"name-{number}", "guess").status for number in range(12)]
    assert found == [401] * 11 + [429]


def test_forwarded_addresses_are_not_trusted(door):
    """Without a configured proxy, anyone can send them."""
    guesser = Visitor(door.site)
    found = [
        guesser.ask(
            "POST",
            "/login",
            form={"name": f"n{n}", "password": "x"},
            x_forwarded_for=f"192.0.2.{n}",
        ).status
        for n in range(12)
    ]
    assert found[-1] == 429


def test_hash_is_replaced_when_the_cost_rises(door, add_user, monkeypatch):
    """At the next login; open sessions stay."""
    ann = add_user()
    before = door.contexts.ledger.accounts.user("ann")["password"]
    monkeypatch.setattr(passwords, "COST", passwords.Cost(n=32, r=1, p=1))
    assert Visitor(door.site).log_in("ann", PASSWORD).status == 303
    after = door.contexts.ledger.accounts.user("ann")["password"]
    assert (before.split("$")[1], after.split("$")[1]) == ("16", "32")
    assert ann.ask("GET", "/v1/me").status == 200
    assert Visitor(door.site).log_in("ann", PASSWORD).status == 303


ELSEWHERE = (
    "https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/a\r\nb",
    "/\tb", "/login?next=x",
)  # fmt: skip


def test_login_redirects_only_within_the_console(door, add_user):
    ann = add_user()
    for there in ELSEWHERE:
        assert ann.log_in("ann", PASSWORD, next=there).headers["location"] == "/", there
    assert ann.log_in("ann", PASSWORD, next="/runs?x=1").headers["location"] == "/runs?x=1"


def test_form_escapes_the_input(door):
    answer = Visitor(door.site).log_in('"><script>alert(1)</script>', "x")
    assert "<script" not in answer.text


# ---- sessions --------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [accounts.IDLE_S, accounts.LIFE_S])
def test_session_expires(door, add_user, monkeypatch, seconds):
    """After two hours without use, or after twelve."""
    ann = add_user()
    row = door.contexts.ledger.accounts.session(secrets.kept(ann.session), time.time())
    at = row["created_at"]
    if seconds == accounts.LIFE_S:
        for hours in range(1, 12):
            assert door.contexts.ledger.accounts.session(row["id"], at + hours * 3600)
    assert door.contexts.ledger.accounts.session(row["id"], at + seconds - 1)
    if seconds == accounts.IDLE_S:
        at += seconds - 1
    assert door.contexts.ledger.accounts.session(row["id"], at + seconds) is None


def test_removed_users_session_ends_at_once(door, add_user):
    """A changed scope applies from the next request."""
    ann, bob = add_user(), add_user("bob", Scope.OPERATOR)
    headers = {"x_csrf_token": secrets.csrf_token(ann.session)}
    assert bob.ask("GET", "/v1/users").status == 403
    ann.ask("POST", "/v1/users/bob/scope", document={"scope": "admin"}, **headers)
    assert bob.ask("GET", "/v1/users").status == 200
    assert ann.ask("POST", "/v1/users/bob/remove", **headers).status == 200
    assert bob.ask("GET", "/v1/me").status == 401
    assert Visitor(door.site).log_in("bob", PASSWORD).status == 401


def test_session_is_cached_while_no_account_changes(door, add_user, monkeypatch):
    """Any change of the accounts makes the next request query it again."""
    ann, asked = add_user(), []
    accounts = door.contexts.ledger.accounts
    question = accounts.session
    monkeypatch.setattr(accounts, "session", lambda *a: (asked.append(1), question(*a))[1])
    for _ in range(3):
        assert ann.ask("GET", "/v1/me").status == 200
    assert len(asked) == 1
    door.call(accounts.set_scope, "ann", Scope.VIEWER, time.time())
    assert ann.ask("GET", "/v1/me").document["scope"] == "viewer"
    assert len(asked) == 2
    monkeypatch.setattr(gate, "KNOWN_S", 0.0)  # such as another server's on the same database
    assert ann.ask("GET", "/v1/me").status == 200
    assert len(asked) == 3


@pytest.mark.parametrize("how", ["passwd", "logout"])
def test_sessions_end_with_the_password(door, add_user, how):
    ann = add_user()
    if how == "passwd":
        door.ask("POST", "/users/ann/password", {"password": "another horse battery"})
    else:
        door.ask("POST", "/users/ann/logout")
    assert ann.ask("GET", "/v1/me").status == 401


def test_own_password_needs_the_old_one(door, add_user):
    """An open session is not enough to take over the account."""
    ann = add_user(scope=Scope.VIEWER)
    headers = {"x_csrf_token": secrets.csrf_token(ann.session)}
    wish = {"old": "wrong", "new": "another horse battery"}
    assert ann.ask("POST", "/v1/me/password", document=wish, **headers).status == 403
    wish["old"] = PASSWORD
    assert ann.ask("POST", "/v1/me/password", document=wish, **headers).status == 200
    assert ann.ask("GET", "/v1/me").status == 401
    assert Visitor(door.site).log_in("ann", wish["new"]).status == 303


def test_guessing_the_old_password_is_slowed_and_says_for_how_long(door, add_user):
    """Someone at an open session gets no more guesses than at the login."""
    ann = add_user(scope=Scope.VIEWER)
    headers = {"x_csrf_token": secrets.csrf_token(ann.session)}
    wish = {"old": "wrong", "new": "another horse battery"}
    found = [ann.ask("POST", "/v1/me/password", document=wish, **headers) for _ in range(7)]
    assert [each.status for each in found[:5]] == [403] * 5
    assert (found[-1].status, int(found[-1].headers["retry-after"]) > 0) == (429, True)


@pytest.mark.long
def test_stream_of_events_ends_with_the_session(door, add_user, monkeypatch):
    """A refusal of the next request is not enough."""
    import asyncio
    from collections.abc import AsyncIterator

    from fastapi.responses import StreamingResponse

    from fedloom.server.access.scopes import Viewer

    monkeypatch.setattr(shield, "RECHECK_S", 0.05)

    async def beats() -> AsyncIterator[str]:
        for _ in range(6000):  # more than two minutes
            yield "data: beat\n\n"
            await asyncio.sleep(0.02)
        yield "data: end\n\n"

    async def events(_: Viewer) -> StreamingResponse:
        return StreamingResponse(beats(), media_type="text/event-stream")

    door.call(lambda: door.app.add_api_route("/v1/beats", events))
    ann = add_user()
    host, port = "127.0.0.1", int(door.site.url.rpartition(":")[2])
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
    cookie = f"{door.site.cookie}={ann.session}"
    connection.request("GET", "/v1/beats", headers={"Cookie": cookie})
    response = connection.getresponse()
    assert response.status == 200
    for _ in range(20):
        assert response.readline()
    door.ask("POST", "/users/ann/remove")
    assert b"end" not in response.read()
    connection.close()


def test_quiet_stream_ends_with_the_credential(door, by_token, monkeypatch):
    """A quiet server sends nothing, so the check must not depend on sending."""
    monkeypatch.setattr(shield, "RECHECK_S", 0.05)
    monkeypatch.setattr(door.contexts.fleet.live, "_beat_s", 3600.0)
    viewer = by_token(Scope.VIEWER)
    port = int(door.site.url.rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    headers = {"Authorization": f"Bearer {viewer.token}"}
    connection.request("GET", "/v1/events?topics=models", headers=headers)
    response = connection.getresponse()
    assert response.readline() == b"event: hello\n"
    identity = viewer.token.split(".")[1]
    door.ask("POST", f"/api-tokens/{identity}/revoke")
    assert b"event" not in response.read()
    connection.close()


# ---- forms of other sites --------------------------------------------------------------------


def _pause(visitor, **headers):
    return visitor.ask("POST", "/v1/tokens", document={"client": "ward-3"}, **headers)


@pytest.mark.long
def test_action_with_a_cookie_needs_the_sessions_token(door, add_user):
    """The token of another session, or the session's own id, is refused."""
    ann, bob = add_user(), add_user("bob")
    for wrong in (None, "", "x" * 64, "é", secrets.csrf_token(bob.session), ann.session):
        answer = _pause(ann, x_csrf_token=wrong and wrong.encode().decode("latin-1"))
        assert (answer.status, answer.kind) == (403, "denied")
    assert door.contexts.ledger.list_tokens() == []
    assert _pause(ann, x_csrf_token=secrets.csrf_token(ann.session)).status == 201


def test_action_from_another_site_is_refused(door, add_user):
    """Even with the right token; another port of the same host is another site."""
    ann = add_user()
    right = secrets.csrf_token(ann.session)
    others = ("https://evil.example", "null", "http://127.0.0.1:1", "http://evil.localhost", "")
    for origin in others:
        assert _pause(ann, x_csrf_token=right, origin=origin).status == 403, origin
    for site in ("cross-site", "same-site"):
        answer = _pause(ann, x_csrf_token=right, origin=None, sec_fetch_site=site)
        assert answer.status == 403
    assert _pause(ann, x_csrf_token=right, origin=None).status == 201


def test_login_form_of_another_site_is_refused(door, add_user):
    """It could log a user in as another."""
    add_user()
    form = {"name": "ann", "password": PASSWORD}
    answer = Visitor(door.site).ask("POST", "/login", form=form, origin="https://evil.example")
    assert answer.status == 403


@pytest.mark.long
def test_other_host_names_are_refused(door, by_token):
    """A name whose owner has pointed it at this server (DNS rebinding)."""
    admin = by_token()
    strange = ("", "[", "a b", "x@localhost", "localhost/x", "localhost?x", "localhost:x")
    for host in ("evil.example", "evil.example:7445", "localhost.evil.example", *strange):
        assert admin.ask("GET", "/v1/server", host=host).status in (400, 421), host
    for known in ("localhost:1", "LOCALHOST", "127.0.0.1", "[::1]:7445", "192.0.2.7"):
        assert admin.ask("GET", "/v1/server", host=known).status == 200, known


# ---- links -----------------------------------------------------------------------------------


def _link(door, scope="admin"):
    status, made = door.ask("POST", "/login-links", {"scope": scope})
    assert status == 201, made
    assert made["url"].startswith(door.site.url)
    return made["url"].removeprefix(door.site.url)


def test_link_logs_the_local_operator_in_once(door):
    """With the requested scope; the second use is refused."""
    visitor, path = Visitor(door.site), _link(door, "operator")
    answer = visitor.ask("GET", path)
    assert (answer.status, answer.headers["location"]) == (303, "/")
    me = visitor.ask("GET", "/v1/me").document
    assert (me["scope"], me["how"]) == ("operator", "session")
    again = Visitor(door.site)
    answer = again.ask("GET", path)
    assert (answer.status, again.cookies) == (401, {})
    assert "used or has expired" in answer.text


def test_link_expires_soon(door, monkeypatch):
    path = _link(door)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + accounts.LINK_LIFE_S)
    assert Visitor(door.site).ask("GET", path).status == 401


def test_prefetching_does_not_use_up_a_link(door):
    path = _link(door)
    assert Visitor(door.site).ask("GET", path, sec_purpose="prefetch;prerender").status == 503
    assert Visitor(door.site).ask("HEAD", path).status == 200  # a preview by a chat
    assert Visitor(door.site).ask("GET", path).status == 303


def test_link_from_another_site_is_confirmed(door):
    visitor, path = Visitor(door.site), _link(door)
    answer = visitor.ask("GET", path, sec_fetch_site="cross-site")
    assert (answer.status, visitor.cookies) == (200, {})
    code = path.partition("code=")[2]
    assert f'value="{code}"' in answer.text
    form = {"code": code}
    assert visitor.ask("POST", "/login/link", form=form, origin="https://x.example").status == 403
    assert visitor.ask("POST", "/login/link", form=form, origin=door.site.url).status == 303


def test_only_the_socket_makes_links(door, by_token):
    """Remote administrators log in by name, which the trail records."""
    answer = by_token().ask("POST", "/v1/login-links", document={})
    assert (answer.status, answer.kind) == (403, "denied")


# ---- API tokens ------------------------------------------------------------------------------


def test_api_token_is_shown_once_used_and_revoked(door):
    """The list has the last use, and no secret."""
    status, made = door.ask("POST", "/api-tokens", {"name": "ci", "scope": "viewer"})
    assert status == 201
    ci = Visitor(door.site, token=made["token"])
    me = ci.ask("GET", "/v1/me").document
    assert me == {"name": "ci", "scope": "viewer", "how": "token", "studies": None}
    _, listed = door.ask("GET", "/api-tokens")
    [row] = listed["api_tokens"]
    assert (row["id"], row["status"]) == (made["id"], "active")
    assert row["used_at"] is not None
    assert made["token"].rpartition(".")[2] not in json.dumps(listed)
    for _ in range(2):
        assert door.ask("POST", f"/api-tokens/{made['id']}/revoke")[1]["status"] == "revoked"
    assert ci.ask("GET", "/v1/me").status == 401


def test_api_tokens_of_a_removed_user_end(door, add_user):
    ann = add_user()
    headers = {"x_csrf_token": secrets.csrf_token(ann.session)}
    wish = {"name": "ci", "scope": "admin"}
    made = ann.ask("POST", "/v1/api-tokens", document=wish, **headers).document
    ci = Visitor(door.site, token=made["token"])
    assert ci.ask("GET", "/v1/users").status == 200
    door.ask("POST", "/users/ann/remove")
    assert ci.ask("GET", "/v1/users").status == 401


def test_tokens_above_a_demoted_users_scope_end(door, add_user):
    ann = add_user()
    headers = {"x_csrf_token": secrets.csrf_token(ann.session)}
    tokens = {}
    for scope in (Scope.VIEWER, Scope.OPERATOR, Scope.ADMIN):
        wish = {"name": f"of-{scope}", "scope": scope}
        tokens[scope] = ann.ask("POST", "/v1/api-tokens", document=wish, **headers).document
    door.ask("POST", "/users/ann/scope", {"scope": "operator"})
    seen = {
        scope: Visitor(door.site, token=made["token"]).ask("GET", "/v1/me").status
        for scope, made in tokens.items()
    }
    assert seen == {Scope.VIEWER: 200, Scope.OPERATOR: 200, Scope.ADMIN: 401}


def test_last_administrator_cannot_remove_or_demote_themselves(door, add_user):
    """With another administrator, or over the socket, it is possible."""
    ann = add_user()

    def ask(path, document):
        token = secrets.csrf_token(ann.session)
        return ann.ask("POST", f"/v1/users/{path}", document=document, x_csrf_token=token)

    for path, document in (("ann/remove", {}), ("ann/scope", {"scope": "viewer"})):
        answer = ask(path, document)
        assert (answer.status, answer.kind) == (409, "conflict")
        assert "another administrator" in answer.text
    assert ask("ann/scope", {"scope": "admin"}).status == 200
    add_user("bob")
    assert ask("ann/scope", {"scope": "operator"}).status == 200
    assert door.ask("POST", "/users/bob/remove", {})[0] == 200


def test_session_without_a_user_can_be_ended(door):
    """Of a link or a provider."""
    visitor = Visitor(door.site)
    visitor.ask("GET", _link(door))
    name = visitor.ask("GET", "/v1/me").document["name"]
    assert door.ask("POST", f"/users/{name}/logout")[0] == 200
    assert visitor.ask("GET", "/v1/me").status == 401
    assert door.ask("POST", f"/users/{name}/logout")[0] == 404


def test_expired_and_invalid_tokens_get_equal_refusals(door, by_token):
    """A cookie beside a bad token does not help."""
    good = by_token()
    wrong = [by_token(expires_at=1.0).token, good.token[:-1] + "!", good.token[:-1], "x", ""]
    last = good.token[-1]
    wrong.append(good.token[:-2] + ("A" if good.token[-2] != "A" else "B") + last)
    answers = {Visitor(door.site, token=token or " ").ask("GET", "/v1/me").text for token in wrong}
    assert len(answers) == 1
    assert "API token is unknown" in answers.pop()
    basic = Visitor(door.site).ask("GET", "/v1/me", authorization=f"Basic {good.token}")
    assert basic.status == 401


def test_token_needs_no_csrf(door, by_token):
    """Browsers do not send such a header on their own initiative."""
    assert _pause(by_token(), origin="https://elsewhere.example").status == 201


# ---- headers of every answer -----------------------------------------------------------------


@pytest.mark.parametrize("broken", [False, True])
def test_every_answer_has_the_security_headers(door, monkeypatch, broken):
    """Pages, documents, refusals, unknown paths and internal errors."""

    def fail(*_):
        raise RuntimeError

    if broken:
        monkeypatch.setattr(Gate, "principal", fail)
    for path in ("/login", "/v1/server", "/nowhere", "/login/style.css"):
        answer = Visitor(door.site).ask("GET", path)
        assert (answer.status == 500) == (broken and path == "/v1/server")
        headers = answer.headers
        csp = headers["content-security-policy"]
        assert "default-src 'self'" in csp
        assert "frame-ancestors 'none'" in csp
        assert "unsafe" not in csp
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert headers["server"] is None
        assert headers["strict-transport-security"] is None  # only a TLS server may promise TLS


@pytest.mark.long
def test_browser_is_sent_to_the_form_and_back(door):
    """A program gets 401; htmx gets a redirect of the page."""
    visitor = Visitor(door.site)
    answer = visitor.ask("GET", "/v1/server", accept="text/html")
    assert answer.status == 401
    door.call(lambda: door.app.add_api_route("/page", _page))
    answer = visitor.ask("GET", "/page?a=1", accept="text/html,*/*")
    assert (answer.status, answer.headers["location"]) == (303, "/login?next=%2Fpage%3Fa%3D1")
    answer = visitor.ask("GET", "/page", accept="text/html", hx_request="true")
    assert (answer.status, answer.headers["hx-redirect"]) == (401, "/login")


from fedloom.server.access.scopes import Viewer  # noqa: E402 - FastAPI reads it from here


async def _page(_: Viewer) -> str:
    return "page"


def test_route_without_a_scope_is_closed(door, add_user):
    """Only the socket reaches it."""

    async def forgotten() -> str:
        return "secret"

    door.call(lambda: door.app.add_api_route("/v1/forgotten", forgotten))
    assert add_user().ask("GET", "/v1/forgotten").status == 403
    assert Visitor(door.site).ask("GET", "/v1/forgotten").status == 403
    assert door.ask("GET", "/forgotten") == (200, "secret")


@pytest.mark.parametrize("chunked", [False, True])
def test_long_unauthenticated_body_is_not_read(door, chunked):
    body = b"a=" + b"x" * (shield.STRANGER_BYTES + 1)
    answer = Visitor(door.site).ask(
        "POST", "/login", body=iter([body]) if chunked else body,
        content_type="application/x-www-form-urlencoded",
    )  # fmt: skip
    assert answer.status in (400, 413)


def test_unauthenticated_document_is_not_parsed(door):
    answer = Visitor(door.site).ask("POST", "/v1/tokens", body="{", content_type="application/json")
    assert (answer.status, answer.kind) == (401, "denied")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.long
def test_long_document_is_refused_and_a_long_model_is_not(door, by_token, tmp_path):
    """A model is written as it arrives; a document would be in memory."""
    from support.door import write_model

    admin, body = by_token(), b" " * (shield.DOCUMENT_BYTES + 1)
    answer = admin.ask("POST", "/v1/tokens", body=body, content_type="application/json")
    assert answer.status == 413
    data = write_model(tmp_path / "m.safetensors", size=3 << 20).read_bytes()
    assert len(data) > shield.DOCUMENT_BYTES
    answer = admin.ask("PUT", "/v1/models", body=data, content_type="application/octet-stream")
    assert answer.status == 201


def test_log_has_no_secret(door, caplog):
    """After logins of every kind, and refusals."""
    with caplog.at_level(logging.DEBUG):
        door.ask("POST", "/users", {"name": "ann", "scope": "admin", "password": PASSWORD})
        ann = Visitor(door.site)
        ann.log_in("ann", PASSWORD)
        ann.log_in("ann", "hunter2 hunter2")
        path = _link(door)
        Visitor(door.site).ask("GET", path)
        _, made = door.ask("POST", "/api-tokens", {"name": "ci", "scope": "viewer"})
        Visitor(door.site, token=made["token"]).ask("POST", "/v1/tokens", document={})
        door.ask("POST", "/users", {"name": "ann", "scope": "x", "password": PASSWORD + "!"})
    text = caplog.text
    assert "login" in text
    secret = path.partition("code=")[2]
    for hidden in (PASSWORD, "hunter2", ann.session, secret, made["token"].rpartition(".")[2]):
        assert hidden not in text
