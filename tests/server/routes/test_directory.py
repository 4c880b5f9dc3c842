"""The directory of clients over the API: search, filters, pages, labels and tasks."""

import pytest

from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.client_failures import Failures
from fedloom.server.fleet.last_seen import Presence, Seen
from fedloom.server.ledger import AcceptedUpdate
from fedloom.server.ledger.tables import clients, labels
from support.contexts import rows_of
from support.door import SPEC, Door


def enrol(door, *names):
    ledger = door.contexts.ledger
    for name in names:
        ledger.add_token(name, "hash", name, 4e9)
        ledger.enrol(name, f"serial-{name}", 4e9)


@pytest.fixture
def door(tmp_path):
    """A server that knows five clients."""
    with Door(tmp_path / "state") as door:
        enrol(door, "east-1", "east-2", "west-1", "west-2", "west_2")
        yield door


@pytest.mark.parametrize(
    ("action", "wish"),
    [
        ("note", {"note": "in the cellar"}),
        ("labels", {"labels": {"floor": "1"}}),
        ("quarantine", None),
        ("drain", None),
        ("release", None),
        ("study", {"study": "cardio"}),
        ("revoke", None),
    ],
)
def test_what_an_operator_sets_reaches_open_pages(door, action, wish):
    """After it is stored: an answer that was made before is not shared any longer."""
    seen = []
    hub, ledger = door.contexts.live, door.contexts.ledger
    report = hub.changed

    def known():
        return [rows_of(ledger, table.select()) for table in (clients, labels)]

    def changed(topic, subject="", look=None):
        seen.append((topic, known()))
        report(topic, subject, look)

    before = known()
    hub.changed = changed
    status, _ = door.ask("POST", f"/clients/east-1/{action}", wish)
    assert status == 200
    stored = [row for topic, row in seen if topic == "clients"]
    assert stored
    assert stored[-1] == known()
    assert action == "release" or stored[-1] != before


def names(door, query=""):
    status, found = door.ask("GET", f"/clients?{query}")
    assert status == 200, found
    return [c["name"] for c in found["clients"]]


def test_clients_come_page_by_page(door):
    """By name, each once; the total is that of all pages."""
    seen, after = [], ""
    while after is not None:
        page = door.ask("GET", f"/clients?limit=2&after={after}")[1]
        assert page["total"] == 5
        seen += [c["name"] for c in page["clients"]]
        after = page["more"]
    assert seen == ["east-1", "east-2", "west-1", "west-2", "west_2"]


def test_search_is_literal_and_ignores_case(door):
    """LIKE's special characters match themselves."""
    assert names(door, "q=WEST") == ["west-1", "west-2", "west_2"]
    assert names(door, "q=t_2") == ["west_2"]
    assert names(door, "q=%25") == []
    assert names(door, "q=%5C") == []
    door.ask("POST", "/clients/east-2/note", {"note": "by the Window"})
    assert names(door, "q=window") == ["east-2"]


def test_labels_of_devices_and_operators_are_separate(door):
    """Both find a client; a device that reconnects changes only its own."""
    ledger = door.contexts.ledger
    ledger.saw({"east-1": Seen(at=1.0, version="0.9", labels={"site": "north", "gpu": "no"})})
    done = door.ask("POST", "/clients/east-1/labels", {"labels": {"site": "south", "ward": "3"}})[1]
    assert done["labels"] == {"site": "south", "ward": "3"}
    assert done["own_labels"] == {"site": "north", "gpu": "no"}
    ledger.saw({"east-1": Seen(at=2.0, version="1.0", labels={"site": "north"})})
    for query, found in {
        "label=site": ["east-1"],
        "label=site=north": ["east-1"],
        "label=site=south": ["east-1"],
        "label=gpu": [],
        "label=ward=4": [],
        "q=north": ["east-1"],
        "version=1": ["east-1"],
        "version=0": [],
    }.items():
        assert names(door, query) == found, query
    done = door.ask("POST", "/clients/east-1/labels", {"labels": {"site": None}})[1]
    assert (done["labels"], done["own_labels"]) == ({"ward": "3"}, {"site": "north"})
    assert done["seen_at"] == 2.0


@pytest.mark.parametrize("bad", [{"": "x"}, {"a=b": "x"}, {"a": "x" * 121}])
def test_invalid_labels_are_refused(door, bad):
    """A name has no equals sign, and both are short."""
    assert door.ask("POST", "/clients/east-1/labels", {"labels": bad})[0] == 422


def test_states_filter(door):
    """States of the ledger, and states that only the fleet knows."""
    door.ask("POST", "/clients/east-1/quarantine", {"reason": "odd"})
    door.ask("POST", "/clients/east-2/drain")
    door.ask("POST", "/clients/west-1/revoke")
    assert names(door, "state=quarantined") == ["east-1"]
    assert names(door, "state=drained") == ["east-2"]
    assert names(door, "state=revoked") == ["west-1"]
    assert names(door, "state=online") == []
    assert len(names(door, "state=offline")) == 5
    assert door.ask("GET", "/clients?state=asleep")[0] == 422


def test_unknown_client_is_not_found_by_any_action(door):
    for what in ("quarantine", "drain", "release", "revoke"):
        assert door.ask("POST", f"/clients/nobody/{what}")[0] == 404
    assert door.ask("POST", "/clients/nobody/note", {"note": ""})[0] == 404
    assert door.ask("POST", "/clients/east-1/dance")[0] == 422


@pytest.mark.long
def test_tasks_of_a_client_with_its_success_rate(door, tmp_path):
    """Four rounds: two counted, one declined, one open; a declined one does not count."""
    ledger, run = door.contexts.ledger, door.submit(tmp_path)
    for number, end in enumerate(["reported", "reported", "declined", "failed", "offered"], 1):
        row = {
            "run": run, "number": number, "kind": "train", "opened_at": float(number),
            "deadline_at": 9.0, "model_in": "m",
        }  # fmt: skip
        ledger.open_round(row, ["east-1", "west-1"])
        if end == "reported":
            update = AcceptedUpdate(
                run=run, round=number, client="east-1", identity="i", file="", size_bytes=0,
                weight=1.0, norm=0.5, counts_in=number,
                training={"num_examples": 3, "values": {"loss": 0.5}},
            )  # fmt: skip
            assert ledger.accept(update, 9)
        elif end != "offered":
            ledger.set_phase(run, number, "east-1", end, "why")
    client = door.ask("GET", "/clients/east-1")[1]
    assert [client[n] for n in ("asked", "counted", "declined", "failed")] == [5, 2, 1, 1]
    assert client["success_rate"] == pytest.approx(2 / 3)
    assert client["last_counted_at"] > 1e9
    first = door.ask("GET", "/clients/east-1/parts?limit=3")[1]
    assert [p["round"] for p in first["parts"]] == [5, 4, 3]
    rest = door.ask("GET", f"/clients/east-1/parts?limit=3&before={first['more']}")[1]
    assert [(p["round"], p["training"]) for p in rest["parts"]] == [
        (2, {"loss": 0.5}),
        (1, {"loss": 0.5}),
    ]
    assert rest["more"] is None
    assert door.ask("GET", "/clients/west-2")[1]["success_rate"] is None


@pytest.mark.long
def test_recent_failures_make_a_failing_client(door, tmp_path):
    """Declined and lost tasks change nothing; an accepted update halves; a release keeps errors."""
    ledger, run = door.contexts.ledger, door.submit(tmp_path)
    histories = {
        "east-1": "fff", "east-2": "ffrf", "west-1": "rfdlff", "west-2": "fffr", "west_2": "ffdd",
    }  # fmt: skip
    phases = {"f": "failed", "d": "declined", "l": "lost"}
    number = 0
    for name, history in histories.items():
        failures = Failures()
        for end in history:
            number += 1
            row = {
                "run": run, "number": number, "kind": "train", "opened_at": float(number),
                "deadline_at": 9e9, "model_in": "m",
            }  # fmt: skip
            ledger.open_round(row, [name])
            if end == "r":
                update = AcceptedUpdate(
                    run=run, round=number, client=name, identity="i", file="", size_bytes=0,
                    weight=1.0, norm=0.5, counts_in=number, training={}, evaluation={},
                )  # fmt: skip
                assert ledger.accept(update, 9)
                failures = failures.after_success(evaluating=False)
            elif end == "f":
                failures = failures.plus_one(float(number))
                ledger.set_phase(run, number, name, "failed", f"no. {number}", failures=failures)
            else:
                ledger.set_phase(run, number, name, phases[end], "why")
    assert names(door, "state=failing") == ["east-1", "west-1"]
    assert names(door, "state=cooling") == []
    found = {c["name"]: c for c in door.ask("GET", "/clients")[1]["clients"]}
    assert {n: c["state"] for n, c in found.items()} == {
        "east-1": "failing", "east-2": "offline", "west-1": "failing", "west-2": "offline",
        "west_2": "offline",
    }  # fmt: skip
    assert {n: c["failures"] for n, c in found.items()} == {
        "east-1": 3, "east-2": 2, "west-1": 3, "west-2": 1, "west_2": 2
    }  # fmt: skip
    assert {n: c["success_level"] for n, c in found.items()} == {
        "east-1": "bad", "east-2": "bad", "west-1": "bad", "west-2": "bad", "west_2": None
    }  # fmt: skip
    assert found["west-2"]["last_error"] == {"text": "no. 16", "run": run, "round": 16, "at": 16.0}
    overview = door.ask("GET", "/overview")[1]
    assert overview["clients_failing"] == 2
    done = door.ask("POST", "/clients/east-1/release")[1]
    assert (done["changed"], done["state"], done["failures"]) == (True, "offline", 0)
    assert done["last_error"]["text"] == "no. 3"
    assert names(door, "state=failing") == ["west-1"]
    door.ask("POST", "/clients/west-1/quarantine")
    assert names(door, "state=failing") == []
    assert door.ask("GET", "/clients/west-1")[1]["state"] == "quarantined"


def test_versions_are_counted(door):
    """Clients that never connected have none."""
    door.contexts.ledger.saw({"east-1": Seen(at=1.0, version="1.0", labels={})})
    assert door.ask("GET", "/client-versions")[1]["versions"] == {"": 4, "1.0": 1}


def test_presence_is_stored_in_one_transaction(door):
    """A client that left meanwhile keeps its data; labels are cut."""
    presence = Presence()
    labels = {f"n{i:03}": "v" * 500 for i in range(100)}
    presence.came("east-1", fleet_pb2.Hello(client="east-1", sdk_version="1.2", labels=labels))
    presence.left("east-1")
    presence.left("east-2")
    taken = presence.take()
    assert presence.take() == {}
    assert taken["east-1"].version == "1.2"
    assert len(taken["east-1"].labels) == 32
    assert taken["east-2"].version is None
    door.contexts.ledger.saw(taken)
    [row] = door.contexts.ledger.look_up(["east-1"])
    assert (row.version, row.seen_at) == ("1.2", taken["east-1"].at)
    assert {len(value) for value in row.own_labels.values()} <= {120}


def test_tokens_come_page_by_page(door):
    """Newest first, those of the same time by id; the total is that of all pages."""
    seen, before = [], ""
    while before is not None:
        page = door.ask("GET", f"/tokens?limit=2&before={before}")[1]
        assert page["total"] == 5
        seen += [t["id"] for t in page["tokens"]]
        before = page["more"]
    assert seen == ["west_2", "west-2", "west-1", "east-2", "east-1"]


def test_control_characters_are_refused(door):
    """They could control a terminal. Line breaks and all scripts are allowed."""
    for bad in ("\x1b[2J", "a\x00", "\x9b31m", "\x7f"):
        for what, body in (
            ("note", {"note": bad}),
            ("quarantine", {"reason": bad}),
            ("labels", {"labels": {"site": bad}}),
            ("labels", {"labels": {bad: "x"}}),
        ):
            assert door.ask("POST", f"/clients/east-1/{what}", body)[0] == 422, (what, bad)
    good = "two\nlines\tof נייר 😀"
    assert door.ask("POST", "/clients/east-1/note", {"note": good})[1]["note"] == good


def test_a_runs_description_counts_the_supernodes(door):
    """By their own label; revoked ones are not counted."""
    spec = {"spec": SPEC}
    assert door.ask("POST", "/runs/describe", spec)[1]["notes"] == []
    labels = {"kind": "supernode"}
    for name in ("east-1", "west-1"):
        door.contexts.ledger.saw({name: Seen(at=1.0, version="1", labels=labels)})
    (note,) = door.ask("POST", "/runs/describe", spec)[1]["notes"]
    assert note.startswith("2 clients are SuperNodes of Flower.")
    door.contexts.ledger.revoke("west-1")
    (note,) = door.ask("POST", "/runs/describe", spec)[1]["notes"]
    assert note.startswith("1 client is a SuperNode of Flower.")
