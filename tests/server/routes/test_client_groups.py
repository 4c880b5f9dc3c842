"""One action on several clients: each with its own entry in the audit trail."""

import pytest

from support.door import Door


@pytest.fixture
def door(tmp_path):
    """A server that knows four clients."""
    with Door(tmp_path / "state") as door:
        ledger = door.contexts.ledger
        for name in ("east-1", "east-2", "west-1", "west-2"):
            ledger.add_token(name, "hash", name, 4e9)
            ledger.enrol(name, f"serial-{name}", 4e9)
        yield door


def act(door, *, preview=False, **wish):
    return door.ask("POST", f"/client-groups{'?preview=true' if preview else ''}", wish)


def entries(door, action):
    """Subjects of the audit trail's entries of an action, oldest first."""
    found = door.ask("GET", f"/audit?action={action}")[1]["entries"]
    return [entry["subject"] for entry in reversed(found)]


def holds(door):
    return {c["name"]: c["hold"] for c in door.ask("GET", "/clients")[1]["clients"]}


def test_preview_names_those_that_match_and_changes_nothing(door):
    status, found = act(door, preview=True, action="quarantine", match={"q": "east"})
    assert status == 200
    assert found["clients"] == ["east-1", "east-2"]
    assert found["consequence"].startswith("2 clients get no offers")
    assert set(holds(door).values()) == {None}
    assert entries(door, "client.quarantine") == []


def test_preview_counts_those_for_whom_nothing_changes(door):
    """And those that do not exist, as the action then reports them."""
    act(door, action="drain", clients=["east-1"])
    names = ["east-1", "east-2", "nobody"]
    for action in ("drain", "quarantine", "release", "revoke"):
        found = act(door, preview=True, action=action, clients=names)[1]
        wanted = {"drain": ["east-1"], "release": ["east-2"]}.get(action, [])
        assert found["unchanged"] == wanted
        assert [each["client"] for each in found["failed"]] == ["nobody"]
        assert ("Nothing changes for 1 of them." in found["consequence"]) == bool(wanted)
        assert found["consequence"].endswith("1 of them does not exist.")
    found = act(door, action="drain", clients=names)[1]
    assert (found["changed"], found["unchanged"]) == (["east-2"], ["east-1"])
    assert [each["client"] for each in found["failed"]] == ["nobody"]


def test_each_client_has_its_entry(door):
    """A repeat changes nothing, and says so."""
    names = ["west-1", "east-1"]
    status, found = act(door, action="drain", clients=names, reason="moving house")
    assert (status, found["changed"], found["failed"]) == (200, names, [])
    assert found["consequence"] == "2 drained."
    assert entries(door, "client.drain") == names
    assert holds(door) == {"east-1": "drain", "east-2": None, "west-1": "drain", "west-2": None}
    again = act(door, action="drain", clients=[*names, "west-2"])[1]
    assert (again["changed"], again["unchanged"]) == (["west-2"], names)
    assert again["consequence"] == "1 drained, 2 unchanged."
    assert act(door, action="release", clients=names)[1]["changed"] == names


def test_failure_of_one_does_not_keep_the_others(door):
    """It is reported by name, and no other client's action is recorded as failed."""
    names = ["east-1", "nobody", "east-2"]
    status, found = act(door, action="quarantine", clients=names)
    assert (status, found["changed"]) == (200, ["east-1", "east-2"])
    [failure] = found["failed"]
    assert failure["client"] == "nobody"
    assert "There is no client" in failure["message"]
    assert "1 failed: nobody" in found["consequence"]
    assert entries(door, "client.quarantine") == ["east-1", "east-2"]
    assert entries(door, "client.quarantine.failed") == []


def test_failure_after_its_entry_is_in_the_trail(door, monkeypatch):
    """As of a single action."""
    ledger = door.contexts.ledger
    known = ledger.set_hold

    def broken(name, *more):
        if name == "east-2":
            raise OSError("no space left on device")
        return known(name, *more)

    monkeypatch.setattr(ledger, "set_hold", broken)
    found = act(door, action="quarantine", clients=["east-1", "east-2", "west-1"])[1]
    assert found["changed"] == ["east-1", "west-1"]
    assert "OSError" in found["failed"][0]["message"]
    assert entries(door, "client.quarantine.failed") == ["east-2"]


def test_labels_and_revocation(door):
    found = act(door, preview=True, action="label", clients=["east-1"], labels={"site": "north"})[1]
    assert "site=north" in found["consequence"]
    act(door, action="label", clients=["east-1", "east-2"], labels={"site": "north"})
    listed = door.ask("GET", "/clients?label=site=north")[1]["clients"]
    assert [c["name"] for c in listed] == ["east-1", "east-2"]
    assert act(door, action="revoke", clients=["west-1"])[1]["changed"] == ["west-1"]
    assert door.ask("GET", "/clients/west-1")[1]["status"] == "revoked"


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"action": "drain"}, "Expected 1 to 1000 clients"),
        ({"action": "drain", "clients": [f"c{n}" for n in range(1001)]}, "at most 1000"),
        ({"action": "drain", "match": {"q": "east"}}, "as the preview of `match` gives them"),
        ({"action": "label", "clients": ["east-1"]}, "Expected `labels`"),
        ({"action": "delete", "clients": ["east-1"]}, "quarantine"),
        ({"action": "drain", "clients": ["east-1"], "all": True}, "Extra inputs"),
    ],
)
def test_wrong_wish_is_refused(door, wish, words):
    status, found = act(door, **wish)
    assert status == 422
    assert words in found["error"]["message"]
    assert set(holds(door).values()) == {None}
