"""Tests every route, from a table built from the routes: who is refused, and how.

A new route is in the table as soon as it exists.
"""

import json
import re
import time

import pytest

from fedloom.protocol.errors import Code, Refusal
from fedloom.server.access import passwords, secrets
from fedloom.server.ledger.access.accounts import Scope
from support.door import Door
from support.routes import table
from support.visitor import Visitor

PASSWORD = "correct horse battery"

READING = ("GET", "HEAD")


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    """A server with a run, a client, a token and a user, for most routes."""
    directory = tmp_path_factory.mktemp("door")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "COST", passwords.Cost(n=16, r=1, p=1))
        with Door(directory / "state", console="127.0.0.1:0") as door:
            ledger = door.contexts.ledger
            door.run = door.submit(directory)
            ledger.add_token("01", "hash", "ward-1", 4e9)
            ledger.enrol("01", "01", 4e9)
            door.contexts.refusals.add("ward-1", door.run, 1, Refusal(Code.NOT_FINITE, "NaN."))
            hashed = passwords.hashed(PASSWORD)
            ledger.accounts.add_user("ann", Scope.ADMIN, hashed, time.time())
            yield door


@pytest.fixture(scope="module")
def rows(door):
    """The table, with paths of existing objects."""
    digest = door.contexts.ledger.run(door.run).model
    found = {"run": door.run, "name": "ward-1", "digest": digest, "action": "pause", "number": "1"}

    def filled(path):
        return re.sub(r"{(\w+)[^}]*}", lambda match: found.get(match[1], "x"), path)

    return [(row, filled(row.path)) for row in table(door.app)]


def _token(door, scope):
    _, made = door.ask("POST", "/api-tokens", {"name": f"a-{scope}", "scope": scope})
    return made["token"]


def _refusals(door, rows, visitor, statuses, wanted=lambda _: True):
    """Send every wanted row as a visitor; return those not refused as expected."""
    before = door.contexts.ledger.trail.head()
    wrong = []
    for row, path in rows:
        if row.scope is not None and wanted(row):
            answer = visitor.ask(row.method, path)
            said = answer.kind if row.method != "HEAD" else answer.text or "denied"
            if answer.status not in statuses or said != "denied":
                wrong.append((row, answer))
    assert door.contexts.ledger.trail.head() == before  # nothing was started
    return wrong


def test_table_is_complete(door, rows):
    """It has the pages, the API and its description; only login routes need no scope."""
    assert len(rows) > 40
    public = {row.path for row, _ in rows if row.scope is None}
    ways = ("", "/link", "/style.css", "/oidc", "/oidc/callback")
    assert public == {f"/login{way}" for way in ways}
    changing = {row.scope for row, _ in rows if row.scope and row.method not in READING}
    # Logging out and checking a run change nothing.
    assert changing == set(Scope) - {Scope.METRICS}
    viewers = {row.path for row, _ in rows if row.scope is Scope.VIEWER and row.method == "POST"}
    assert viewers == {"/logout", "/v1/me/password", "/v1/runs/check", "/v1/runs/describe"}


def test_only_administrators_grant_access(rows):
    """Accounts, API tokens, login links and enrolment tokens, also future kinds."""
    doors = ("/v1/users", "/v1/api-tokens", "/v1/login-links", "/v1/tokens", "/enrolment")
    found = [row for row, _ in rows if row.path.startswith(doors)]
    assert len({row.path for row in found}) >= len(doors)
    reading = {row.path for row in found if row.scope is not Scope.ADMIN}
    assert {row.method for row in found if row.scope is not Scope.ADMIN} <= set(READING)
    assert reading == {"/v1/tokens", "/enrolment"}


@pytest.mark.parametrize(
    ("token", "session"),
    [(None, ""), ("fla1.00000000." + "A" * 43, ""), ("nonsense", ""), (" ", ""), (None, "A" * 43)],
)
def test_missing_or_bad_credential_is_refused_everywhere(door, rows, token, session):
    """401, with no hint of what exists."""
    visitor = Visitor(door.site, token=token)
    visitor.cookies = {door.site.cookie: session} if session else {}
    assert _refusals(door, rows, visitor, (401,)) == []


@pytest.mark.parametrize("scope", [Scope.METRICS, Scope.VIEWER, Scope.OPERATOR])
def test_too_low_a_scope_is_refused_everywhere(door, rows, scope):
    """403, whatever else is wrong with the request."""
    visitor = Visitor(door.site, token=_token(door, scope))
    wrong = _refusals(door, rows, visitor, (403,), lambda row: not scope.covers(row.scope))
    assert wrong == []


def test_session_without_its_token_is_refused_everywhere(door, rows):
    """403 for requests that change something, with any scope."""
    ann = Visitor(door.site)
    assert ann.log_in("ann", PASSWORD).status == 303
    wanted = lambda row: row.method not in READING  # noqa: E731 - it reads better beside its use
    assert _refusals(door, rows, ann, (403,), wanted) == []
    other = Visitor(door.site)
    other.cookies, other.origin = dict(ann.cookies), "https://evil.example"
    assert _refusals(door, rows, other, (403,), wanted) == []


@pytest.mark.parametrize("scope", [*Scope])
def test_sufficient_scope_can_read(door, rows, scope):
    """Otherwise the other tests would pass if every request were refused."""
    visitor, wrong = Visitor(door.site, token=_token(door, scope)), []
    for row, path in rows:
        if row.method in READING and row.scope is not None and scope.covers(row.scope):
            answer = visitor.ask(row.method, path)
            if answer.status in (401, 403, 405) or answer.status >= 500:
                wrong.append((row, answer))
    assert wrong == []


def test_head_equals_get(door, rows):
    """Status and headers, also of refusals; except for login links."""
    admin, asked = Visitor(door.site, token=_token(door, Scope.ADMIN)), 0
    for path in {path for row, path in rows if row.method == "HEAD"} - {"/login/link"}:
        for visitor in (admin, Visitor(door.site)):
            get, head = (visitor.ask(method, path) for method in ("GET", "HEAD"))
            assert (head.status, head.text) == (get.status, ""), path
            assert _steady(head.headers) == _steady(get.headers), path
            asked += 1
    assert asked > 80


def _steady(headers):
    """Headers that do not change between requests."""
    changing = ("date", "content-length", "location", "set-cookie")
    return sorted((name, text) for name, text in headers.items() if name not in changing)


def test_no_answer_holds_a_secret(door, rows):
    """Passwords, sessions, tokens, links and keys, in any stored form."""
    ann, admin = Visitor(door.site), Visitor(door.site, token=_token(door, Scope.ADMIN))
    ann.log_in("ann", PASSWORD)
    _, device = door.ask("POST", "/tokens", {"client": "ward-2"})
    _, link = door.ask("POST", "/login-links", {})
    ledger = door.contexts.ledger
    hidden = {
        "password": PASSWORD,
        "hash of the password": ledger.accounts.user("ann")["password"],
        "session": ann.session,
        "session as it is kept": secrets.kept(ann.session),
        "API token": admin.token.rpartition(".")[2],
        "API token as it is kept": secrets.kept(admin.token.rpartition(".")[2]),
        "device's token": device["token"].split(".")[2],
        "device's token as it is kept": ledger.token(device["id"]).secret_hash,
        "link": link["url"].partition("code=")[2],
    }
    keys = [*(door.directory / "pki").iterdir(), *(door.directory / "noise").glob("*")]
    for path in keys:
        text = path.read_text("latin-1")
        for block in re.findall(r"PRIVATE KEY-----(.*?)-----END", text, re.DOTALL):
            hidden[str(path)] = block.split()[1]
    assert len(hidden) == 9 + len(keys) - 1  # root.pem holds no key
    asked = 0
    for row, path in rows:
        if row.method == "GET":
            asked += 1
            for visitor in (ann, admin):
                answer = visitor.ask("GET", path)
                said = f"{answer.headers}{answer.text}"
                assert [name for name, text in hidden.items() if text in said] == [], row
    assert asked > 20
    assert json.loads(admin.ask("GET", "/v1/users").text)["users"][0]["name"] == "ann"


def test_every_number_has_bounds(door):
    """Databases and clocks fail on numbers that are too large."""
    description = Visitor(door.site, token=_token(door, Scope.VIEWER))
    found = description.ask("GET", "/v1/openapi.json").document
    schemas, numbers, wrong = found["components"]["schemas"], 0, []

    def parts(schema):
        if "$ref" in schema:
            schema = schemas[schema["$ref"].rpartition("/")[2]]
        yield schema
        for inner in (*schema.get("properties", {}).values(), *schema.get("anyOf", ())):
            yield from parts(inner)

    for path, methods in found["paths"].items():
        for operation in methods.values():
            taken = [p["schema"] for p in operation.get("parameters", ())]
            body = operation.get("requestBody", {}).get("content", {})
            taken += [content["schema"] for content in body.values()]
            for part in (part for schema in taken for part in parts(schema)):
                if part.get("type") in ("integer", "number"):
                    numbers += 1
                    if "maximum" not in part and "exclusiveMaximum" not in part:
                        wrong.append((path, part))
    assert numbers > 8
    assert wrong == []
