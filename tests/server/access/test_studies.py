"""A principal of one study finds nothing of another: every route, from the table of routes."""

import html
import json
import re
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from fastapi import routing

from fedloom.server.access import passwords
from fedloom.server.access.studies import ROUTES
from fedloom.server.event_hub import Hub
from fedloom.server.ledger import tables
from fedloom.server.ledger.access.accounts import Scope
from fedloom.server.ledger.audit_trail import Filter
from fedloom.server.queries.views import Action
from fedloom.server.web import render
from support.door import Door, write_model
from support.routes import table
from support.visitor import Visitor

PASSWORD = "correct horse battery"
MARK = "zebra"
"""In every name of the other study."""


class Study:
    """A run, a client, a model and an enrolment token of a study."""

    def __init__(self, door, folder, name, value):
        self.name = name
        ledger = door.contexts.ledger
        self.client = f"{name}-ward"
        ledger.add_token(f"t-{name}", "hash", self.client, 4e9, name)
        ledger.enrol(f"t-{name}", f"serial-{name}", 4e9)
        door.ask("POST", f"/clients/{self.client}/study", {"study": name})
        door.ask("POST", f"/clients/{self.client}/labels", {"labels": {f"{name}-site": "x"}})
        door.ask("POST", f"/clients/{self.client}/note", {"note": f"{name} note"})
        self.digest = door.put_model(write_model(folder / f"{name}.safetensors", 4, value))
        spec = {"name": name, "study": name, "cohort": {"goal": 2}}
        spec["train"] = {"epochs": 1, "learning_rate": 0.1}
        status, run = door.ask("POST", "/runs", {"spec": spec, "model": self.digest})
        assert status == 201, run
        self.run = run["id"]


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    """A server with two studies, and a user of the second one."""
    folder = tmp_path_factory.mktemp("studies")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "COST", passwords.Cost(n=16, r=1, p=1))
        with Door(folder / "state", console="127.0.0.1:0") as door:
            door.own = Study(door, folder, "cardio", 1.0)
            door.other = Study(door, folder, f"{MARK}-onco", 2.0)
            door.free = door.submit(folder, name=f"{MARK}-free")  # a run without a study
            hashed = passwords.hashed(PASSWORD)
            accounts = door.contexts.ledger.accounts
            accounts.add_user(f"{MARK}-ann", Scope.OPERATOR, hashed, time.time(), [door.other.name])
            accounts.add_user("bea", Scope.OPERATOR, hashed, time.time(), ["cardio"])
            yield door


@pytest.fixture(scope="module")
def token(door):
    wish = {"name": "ci", "scope": "operator", "studies": ["cardio"]}
    status, made = door.ask("POST", "/api-tokens", wish)
    assert (status, made["studies"]) == (201, ["cardio"])
    return made["token"]


@pytest.fixture(scope="module")
def visitor(door, token):
    """A program that is limited to the first study."""
    return Visitor(door.site, token=token)


NOWHERE = {"run": "quagga-onco-000000", "name": "quagga-onco-ward", "digest": "ab" * 32}
"""Names that no object has."""


BODIES = {
    "rollback": {"round": 0},
    "note": {"note": "x"},
    "labels": {"labels": {"site": "x"}},
    "study": {"study": "cardio"},
    "promote": {"note": "x"},
}
"""Bodies by a route's last word: one that is refused would be refused before any look-up."""


def filled(path, names):
    """A route's path with an object's names."""
    names = {"number": "1", "action": "pause", "hold": "drain", "token_id": "t-x", **names}
    return re.sub(r"{(\w+)[^}]*}", lambda found: names.get(found[1], "x"), path)


def names_of(study):
    return {
        "run": study.run,
        "name": study.client,
        "digest": study.digest,
        "token_id": f"t-{study.name}",
    }


def answered(visitor, row, names, query=""):
    """The answer to a request, without the names that were asked for."""
    wish = BODIES.get(row.path.rpartition("/")[2], {})
    body = {"document": wish} if row.method in ("POST", "PUT") else {}
    answer = visitor.ask(row.method, filled(row.path, names) + query, **body)
    text = answer.text
    for key, name in sorted(names.items(), key=lambda item: -len(item[1])):
        text = text.replace(name, key)
    # Sizes too: the page of a new run tells the room on the disk, which other processes use.
    text = re.sub(r"<time.*?</time>|\d+(\.\d+)? (ms|s|min|[kMGT]?B)\b", "TIME", text)
    return answer.status, re.sub(r"\d{9,}(\.\d+)?", "TIME", text)


def rows_of(door):
    """Every method of every route that needs a login."""
    rows = [row for row in table(door.app) if row.scope is not None]
    assert len(rows) > 80
    return rows


@pytest.mark.long
def test_no_route_tells_an_object_of_another_study_from_none(door, visitor):
    """Each route answers for it as for a name that does not exist, byte by byte."""
    differing = []
    for row in rows_of(door):
        for other in (door.other, None):
            there = names_of(other) if other else {**names_of(door.other), "run": door.free}
            nowhere = {**NOWHERE, "token_id": "t-quagga-onco"}
            one, two = answered(visitor, row, there), answered(visitor, row, nowhere)
            if one != two or MARK in one[1]:
                differing.append((row.method, row.path, one[0], two[0], one[1][:200]))
    assert differing == []
    done = door.contexts.ledger.trail.page(Filter(who="ci"), 100)
    assert [entry["action"] for entry in done if MARK in json.dumps(entry)] == []


QUERIES = (
    "q={m}", "run={run}", "runs={run}", "of={digest}", "client={name}", "label={m}-site",
    "subject={run}", "state=running", "part=live", "base={digest}", "clone={run}",
    "study={m}-onco",
)  # fmt: skip


@pytest.mark.parametrize(
    "query", [q if q in QUERIES[:3] else pytest.param(q, marks=pytest.mark.long) for q in QUERIES]
)
def test_no_query_finds_an_object_of_another_study(door, visitor, query):
    """Filters and names in queries, for every route that reads: answered as for no object."""
    found = []
    for row in rows_of(door):
        if row.method == "GET":
            seen = []
            for mark, names in ((MARK, names_of(door.other)), ("quagga", NOWHERE)):
                asked = f"?{query.format(m=mark, **names)}"
                status, text = answered(visitor, row, names_of(door.own), asked)
                for name in (*names.values(), mark):
                    text = text.replace(name, "X")
                seen.append((status, text))
            if seen[0] != seen[1]:
                found.append((row.path, query, seen))
    assert found == []


def test_own_objects_are_there(door, visitor):
    """Otherwise the tests above would hold for a server that answers nothing."""
    names = names_of(door.own)
    for path in (
        "/v1/runs", "/v1/runs/{run}", "/v1/runs/{run}/refusals", "/v1/runs/{run}/rounds",
        "/v1/runs/{run}/curves", "/v1/curves?runs={run}", "/v1/clients", "/v1/clients/{name}",
        "/v1/clients/{name}/parts", "/v1/models?run={run}", "/v1/models/{digest}", "/v1/me",
        "/runs", "/runs/{run}", "/runs/{run}/rounds", "/v1/openapi.json", "/v1/events",
        "/", "/v1/overview", "/clients", "/clients/{name}", "/models", "/models/{digest}",
        "/runs/new", "/runs/new?clone={run}", "/compare?runs={run}",
    ):  # fmt: skip
        answer = visitor.ask("GET", filled(path, names))
        assert answer.status == 200, (path, answer.text[:300])
    assert [r["id"] for r in visitor.ask("GET", "/v1/runs").document["runs"]] == [door.own.run]
    clients = visitor.ask("GET", "/v1/clients").document
    assert (clients["total"], clients["clients"][0]["name"]) == (1, door.own.client)
    acted = visitor.ask("POST", f"/v1/runs/{door.own.run}/pause", document={})
    assert (acted.status, acted.document["state"]) == (200, "paused")
    acted = visitor.ask("POST", f"/v1/runs/{door.own.run}/resume", document={})
    assert acted.document["changed"] is True
    acted = visitor.ask("POST", f"/v1/clients/{door.own.client}/drain", document={})
    assert (acted.status, acted.document["hold"]) == (200, "drain")
    visitor.ask("POST", f"/v1/clients/{door.own.client}/release", document={})


REQUESTS = (
    ("/v1/runs", {"spec": {"study": "cardio"}, "model": "{digest}"}),
    ("/v1/runs/check", {"spec": {"study": "cardio"}, "model": "{digest}"}),
    ("/v1/runs/check", {"spec": {"study": "{study}"}}),
    ("/v1/runs", {"spec": {"study": "{study}"}, "model": "{own}"}),
    ("/v1/client-groups", {"action": "drain", "clients": ["{name}"]}),
    ("/v1/client-groups", {"action": "label", "clients": ["{name}"], "labels": {"x": "y"}}),
    ("/v1/client-groups", {"action": "revoke", "clients": ["{name}"]}),
    ("/v1/client-groups?preview=true", {"action": "drain", "clients": ["{name}"]}),
    ("/v1/client-groups?preview=true", {"action": "release", "clients": ["{name}"]}),
    ("/v1/client-groups?preview=true", {"action": "drain", "match": {"study": "{study}"}}),
    ("/v1/client-groups?preview=true", {"action": "drain", "match": {"q": "{name}"}}),
    ("/v1/client-groups?preview=true", {"action": "drain", "match": {"label": "{study}-site"}}),
)


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_no_body_finds_an_object_of_another_study(door, visitor, path, body):
    """As JSON: the answer is that for names that nobody has."""
    settings = {"name": "x", "cohort": {"goal": 1}, "train": {"epochs": 1, "learning_rate": 0.1}}
    seen = []
    for study, names in ((door.other.name, names_of(door.other)), ("quagga-onco", NOWHERE)):
        named = {**names, "study": study, "own": door.own.digest}
        text = json.dumps(body)
        for key, name in named.items():
            text = text.replace(f"{{{key}}}", name)
        document = json.loads(text)
        if "spec" in document:
            document["spec"] |= settings
        answer = visitor.ask("POST", path, document=document)
        seen.append((answer.status, without(answer.text, study, names)))
    assert seen[0] == seen[1]
    acted = answer.document if answer.status == 200 else None
    assert (answer.status if acted is None else len(acted["failed"])) in (404, 422, 1)
    client = door.ask("GET", f"/clients/{door.other.client}")[1]
    assert (client["status"], client["hold"], "x" in client["labels"]) == ("active", None, False)


def test_several_clients_are_acted_on_in_the_own_study_alone(door, visitor):
    """One of another study is answered like one that does not exist; the own one is drained."""
    names = [door.own.client, door.other.client, "quagga-ward"]
    for path, changed in (("?preview=true", []), ("", [door.own.client])):
        wish = {"action": "drain", "clients": names}
        found = visitor.ask("POST", f"/v1/client-groups{path}", document=wish).document
        assert found["changed"] == changed
        texts = [each["message"].replace(each["client"], "X") for each in found["failed"]]
        assert [each["client"] for each in found["failed"]] == names[1:]
        assert texts[0] == texts[1]
    wish = {"action": "release", "match": {}}
    found = visitor.ask("POST", "/v1/client-groups?preview=true", document=wish).document
    assert found["clients"] == [door.own.client]
    wish = {"action": "release", "clients": names[:1]}
    released = visitor.ask("POST", "/v1/client-groups", document=wish)
    assert released.document["changed"] == names[:1]
    for words in ("", "?preview=true"):
        wish = {"action": "revoke", "clients": names[:1]}
        assert visitor.ask("POST", f"/v1/client-groups{words}", document=wish).status == 404
    assert door.ask("GET", f"/clients/{door.own.client}")[1]["status"] == "active"


@pytest.mark.parametrize("then", ["check", "start"])
@pytest.mark.parametrize("field", ["model", "study", "toml"])
def test_no_form_finds_an_object_of_another_study(door, visitor, field, then):
    """The page of a new run, with a model or a study of another."""
    seen = []
    for study, names in ((door.other.name, names_of(door.other)), ("quagga-onco", NOWHERE)):
        fields = {"name": "x", "study": "cardio", "model": door.own.digest, "then": then}
        fields |= {"cohort.goal": "1", "cohort.quorum": "1", "train.learning_rate": "0.1"}
        fields |= {"model": {"model": names["digest"]}, "study": {"study": study},
                   "toml": {"study": "", "toml": f'study = "{study}"'}}[field]  # fmt: skip
        answer = visitor.ask("POST", "/runs/new", form=fields)
        seen.append((answer.status, without(answer.text, study, names)))
    assert seen[0] == seen[1]
    assert seen[0][0] in (404, 422)


def without(text, study, names):
    """An answer without the names that were asked for, and without times."""
    whole = sorted((*names.values(), study), key=len, reverse=True)
    for name in (*whole, *(each[:12] for each in whole)):
        text = text.replace(name, "X")
    return re.sub(r"\d{9,}(\.\d+)?", "TIME", re.sub(r"<time.*?</time>", "TIME", text))


def test_a_check_counts_the_clients_of_the_study_alone(door, visitor):
    """Also that of an administrator, whose run has these clients alone too."""
    spec = {"name": "x", "cohort": {"goal": 1}, "train": {"epochs": 1, "learning_rate": 0.1}}
    for ask in (
        lambda body: visitor.ask("POST", "/v1/runs/check", document=body).document,
        lambda body: door.ask("POST", "/runs/check", body)[1],
    ):
        assert ask({"spec": {**spec, "study": "cardio"}, "model": door.own.digest})["total"] == 1
    assert door.ask("POST", "/runs/check", {"spec": spec})[1]["total"] == 0


def test_the_overview_is_of_the_study(door, visitor):
    """Counts, runs and alerts of the study alone; other failing clients and runs raise none."""
    for study in (door.own, door.other):
        fail(door, study, 9)
    found = visitor.ask("GET", "/v1/overview").document
    whole = door.ask("GET", "/overview")[1]
    page = visitor.ask("GET", "/")
    for study in (door.own, door.other):
        fail(door, study, None)
    assert (found["clients_enrolled"], whole["clients_enrolled"]) == (1, 2)
    assert {run["id"] for run in found["runs"]} < {run["id"] for run in whole["runs"]}
    assert all(run["id"] != door.other.run for run in found["runs"])
    assert (found["clients_failing"], whole["clients_failing"]) == (1, 2)
    assert found["alerts"] != []
    assert (door.own.run in page.text, MARK in page.text) == (True, False)


def fail(door, study, times):
    """Record failures of a study's client in a row."""
    values = {"failures": times, "failed_at": 1.0, "failed_run": study.run, "failed_round": 1}
    query = sa.update(tables.clients).where(tables.clients.c.name == study.client)
    with door.contexts.ledger._engine.begin() as connection:
        connection.execute(query.values(values if times else dict.fromkeys(values)))
    door.call(door.contexts.live.changed, "clients")  # pages are cached until then


def test_every_link_and_action_of_a_page_is_open(door, visitor):
    """From the first page on: no page shows what is closed to its reader."""
    todo, done, actions = ["/"], set(), set()
    while todo:
        path = todo.pop().partition("#")[0]
        if path in done:
            continue
        done.add(path)
        answer = visitor.ask("GET", path, accept="text/html")
        selecting = path == f"/runs/{door.own.run}/rounds/1"  # it has a page when it opens
        assert answer.status == (404 if selecting else 200), path
        assert "no such page" not in answer.text, path
        if "<html" not in answer.text:
            continue
        found = {
            html.unescape(each) for each in re.findall(r'(?:href|action)="([^"]+)"', answer.text)
        }
        actions |= {html.unescape(each) for each in re.findall(r'data-act="([^"]+)"', answer.text)}
        todo += [p for p in found if p.startswith("/") and not p.startswith(("/static", "/docs"))]
    assert {"/", "/runs", "/clients", "/models", "/runs/new", "/compare"} <= done
    assert {"/audit", "/logs", "/privacy", "/enrolment"}.isdisjoint(done)
    assert any(path.startswith(f"/clients/{door.own.client}") for path in done)
    assert any(path.startswith(f"/models/{door.own.digest}") for path in done)
    assert len(actions) > 3
    for path in sorted(actions):
        answer = visitor.ask("POST", f"{path}?preview=true", document={})
        assert "no such page" not in answer.text, path


def test_pages_name_routes_that_exist(door):
    """A misspelt name would hide a link from users of a study."""
    folder = Path(render.__file__).parent / "templates"
    named = {
        name
        for each in folder.glob("*.html")
        for name in re.findall(r'may_open\("([^"]+)"\)', each.read_text("utf-8"))
    }
    named |= {f"web.{place}.{place}" for place, *_ in render.PLACES}
    assert len(named) > 10
    assert named <= functions(door)


def test_the_open_routes_exist(door):
    """A misspelt name would close a route; a moved function must be moved in the list."""
    assert functions(door) >= ROUTES


def functions(door):
    """Functions of all routes, as `ROUTES` names them."""
    found = set()
    for each in routing.iter_route_contexts(door.app.routes):
        if isinstance(each.original_route, routing.APIRoute):
            endpoint = each.original_route.endpoint
            name = f"{endpoint.__module__}.{endpoint.__name__}"
            found.add(name.removeprefix("fedloom.server."))
    return found


def test_a_run_is_submitted_only_to_an_own_study_from_an_own_model(door, visitor, tmp_path):
    """A model of another study is not found by its digest; one that was uploaded may be used."""
    spec = {"name": "mine", "cohort": {"goal": 1}, "train": {"epochs": 1, "learning_rate": 0.1}}

    def submit(digest, **more):
        document = {"spec": {**spec, **more}, "model": digest}
        return visitor.ask("POST", "/v1/runs", document=document)

    for study in ({}, {"study": door.other.name}):
        refused = submit(door.own.digest, **study)
        assert (refused.status, "Expected `study`" in refused.text) == (422, True)
    hidden = submit(door.other.digest, study="cardio")
    absent = submit("cd" * 32, study="cardio")
    assert (hidden.status, absent.status) == (404, 404)
    assert hidden.text.replace(door.other.digest, "") == absent.text.replace("cd" * 32, "")
    body = write_model(tmp_path / "new.safetensors", 4, 3.0).read_bytes()
    uploaded = visitor.ask("PUT", "/v1/models", body=body)
    made = submit(uploaded.document["digest"], study="cardio")
    assert (made.status, made.document["study"]) == (201, "cardio")
    again = submit(door.own.digest, study="cardio")
    assert again.status == 201


def test_names_of_flower_apps_are_those_of_the_server(door, visitor, monkeypatch):
    """A misspelt one does not list the others to users of a study."""
    monkeypatch.setitem(door.contexts.config.flower_apps, f"{MARK}-app", "/nowhere")
    document = {"spec": {"name": "x", "study": "cardio", "flower": {"server_app": "misspelt"}}}
    answer = visitor.ask("POST", "/v1/runs", document=document)
    assert (answer.status, "got 'misspelt'" in answer.text) == (422, True)
    assert MARK not in answer.text


def test_answers_are_not_shared_between_studies(door, visitor):
    """The live part of a page is cached for all readers that may see the same."""
    whole = Visitor(door.site)
    assert whole.log_in(f"{MARK}-ann", PASSWORD).status == 303
    before = whole.ask("GET", "/runs?part=live").text
    mine = visitor.ask("GET", "/runs?part=live").text
    after = whole.ask("GET", "/runs?part=live").text
    assert (door.other.run in before, door.own.run in before) == (True, False)
    assert (door.other.run in mine, door.own.run in mine) == (False, True)
    assert (door.other.run in after, door.own.run in after) == (True, False)


def test_a_session_is_limited_as_its_user(door):
    """From the login on; the console's pages of the study work, others do not exist."""
    bea = Visitor(door.site)
    assert bea.log_in("bea", PASSWORD).status == 303
    assert bea.ask("GET", "/v1/me").document["studies"] == ["cardio"]
    page = bea.ask("GET", "/runs")
    assert (page.status, door.own.run in page.text, MARK in page.text) == (200, True, False)
    assert bea.ask("GET", f"/runs/{door.other.run}").status == 404
    assert bea.ask("GET", "/audit").status == 404


@pytest.mark.parametrize("scope", ["admin", "metrics"])
def test_scopes_of_the_whole_server_have_no_studies(door, scope):
    wish = {"name": "x", "scope": scope, "studies": ["cardio"]}
    status, fault = door.ask("POST", "/api-tokens", wish)
    assert (status, "Expected the scope" in fault["error"]["message"]) == (422, True)


@pytest.mark.parametrize("studies", [[], [""], ["Cardio"], ["a b"], ["x" * 41]])
def test_names_of_studies_are_checked(door, studies):
    wish = {"name": "x", "scope": "viewer", "studies": studies}
    assert door.ask("POST", "/api-tokens", wish)[0] == 422


def test_a_user_of_a_study_becomes_no_administrator(door):
    """The wider scope would be of the whole server."""
    assert door.ask("POST", "/users/bea/scope", {"scope": "admin"})[0] == 422
    assert door.ask("POST", "/users/bea/scope", {"scope": "viewer"})[0] == 200
    assert door.ask("POST", "/users/bea/scope", {"scope": "operator"})[0] == 200


def test_events_are_of_own_runs_alone():
    """No counts of clients, no other topics, and not even how many changes there were."""
    import asyncio

    async def scenario():
        hub = Hub(pace_s=0.0)
        hub.changed("run", "before")
        watcher = hub.watch((), "ci", lambda topic, run: topic == "run" and run == "mine")
        everyone = hub.watch((), "ann")
        for topic, subject in (("run", "mine"), ("run", "theirs"), ("clients", ""), ("audit", "")):
            hub.changed(topic, subject)
        await asyncio.sleep(0.05)
        hub.close()
        return [m async for m in watcher], [m async for m in everyone]

    mine, everyone = asyncio.run(scenario())
    assert b"theirs" in b"".join(everyone)
    assert mine == [
        b'event: hello\ndata: {"version":0}\n\n',
        b'event: run\ndata: {"subject":"mine","now":null}\n\n',
    ]


@pytest.mark.parametrize("action", [each.value for each in Action])
def test_no_action_tells_a_run_of_another_study_from_none(door, visitor, action):
    """With the arguments that each action takes, and as a preview."""
    wish = {"goal": 2, "quorum": 1} if action == "goal" else {}
    wish |= {"seconds": 5.0} if action == "extend" else {}
    wish |= {"priority": 3} if action == "priority" else {}
    for query in ("", "?preview=true"):
        seen = []
        for run in (door.other.run, door.free, NOWHERE["run"], door.other.run[:-1]):
            answer = visitor.ask("POST", f"/v1/runs/{run}/{action}{query}", document=wish)
            seen.append((answer.status, answer.text.replace(run, "RUN")))
        assert len(set(seen)) == 1, seen
        assert seen[0][0] == 404
