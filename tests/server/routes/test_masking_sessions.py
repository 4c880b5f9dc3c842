"""Masking sessions over the API: who was asked and who sent what, never what was sent."""

import json
import re

import pytest

from fedloom.server.engine import SessionState
from fedloom.server.ledger.masking import blames
from fedloom.server.ledger.masking import sessions as phases
from fedloom.server.planning.spec import parse
from support.door import Door
from support.masked_rounds import AT, MASKED, NUMBER, RUN, abandoned, done, masked_ledger, send


@pytest.fixture
def door(tmp_path):
    """A server with a masked round whose sessions share; its run has no driver."""
    masked_ledger(tmp_path / "state", spec=parse(MASKED).as_dict()).close()
    with Door(tmp_path / "state") as door:
        door.ledger = door.contexts.ledger
        yield door


def get(door, path=""):
    status, found = door.ask("GET", f"/runs/{RUN}{path}")
    assert status == 200, found
    return found


def sessions(door):
    found = get(door, f"/rounds/{NUMBER}/sessions")["sessions"]
    assert found == get(door, f"/rounds/{NUMBER}")["sessions"]
    return found


@pytest.fixture(autouse=True)
def folder(tmp_path):
    (tmp_path / "state").mkdir()


def test_sessions_that_share(door):
    """Their sizes and numbers; no set is fixed."""
    send(door.ledger, phases.SHARES, "ac")
    first, second = sessions(door)
    assert first | {"opened_at": 0, "sent": {"ready": 4, "shares": 2}} == {
        "session": 0, "state": "sharing", "words": "waits for the shares of its members",
        "reason": "", "width_class": "", "size": 4, "threshold": 3, "drop_outs": 1, "colluders": 1,
        "shared": None, "masked": None, "revealed": None, "sent": {"ready": 4, "shares": 2},
        "closed": 0, "proven_dead": False, "blamed": [], "opened_at": 0, "deadline_at": 9e9,
    }  # fmt: skip
    assert (second["session"], second["sent"]) == (1, {"ready": 4})


def test_a_session_of_one_width_shows_the_width_alone(tmp_path):
    """The digest of what its members cover says nothing to people."""
    rosters = (("0.5:" + 40 * "a", "abcd"), ("1.0:" + 40 * "b", "efgh"))
    masked_ledger(tmp_path / "state", rosters, spec=parse(MASKED).as_dict()).close()
    with Door(tmp_path / "state") as door:
        assert [each["width_class"] for each in sessions(door)] == ["0.5", "1.0"]


def test_members_and_what_each_has_sent(door):
    """By name, with times; whether an update counts is open while the session goes on."""
    send(door.ledger, phases.SHARES, "ac")
    found = get(door, f"/rounds/{NUMBER}/sessions/0")
    assert (found["run"], found["round"]) == (RUN, NUMBER)
    assert [(m["client"], sorted(m["sent"]), m["counts"]) for m in found["members"]] == [
        ("a", ["ready", "shares"], None),
        ("b", ["ready"], None),
        ("c", ["ready", "shares"], None),
        ("d", ["ready"], None),
    ]


def test_a_session_that_is_done(door):
    """The survivors count, and the others do not."""
    done(door.ledger, 0, "abd", revealed="ab" + "d")
    first = sessions(door)[0]
    assert (first["state"], first["shared"], first["masked"], first["revealed"]) == (
        "done",
        4,
        3,
        3,
    )
    members = get(door, f"/rounds/{NUMBER}/sessions/0")["members"]
    assert {m["client"]: m["counts"] for m in members} == {
        "a": True, "b": True, "c": False, "d": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("agreed", "closing", "counted", "proven"),
    [("", "ab", 2, False), ("", "abc", 3, True), ("c", "abc", 2, False), ("d", "abcd", 3, True)],
)
def test_enough_closings_prove_a_session_dead(door, agreed, closing, counted, proven):
    """A member that signed the survivors, too, is not among the three that are needed."""
    abandoned(door.ledger, 0, agreed=agreed, closing=closing, reason="too few signed")
    found = get(door, f"/rounds/{NUMBER}/sessions/0")
    assert (found["closed"], found["proven_dead"]) == (counted, proven)
    assert found["reason"] == "too few signed"
    assert sum(m["closed"] for m in found["members"]) == counted
    assert not any(m["counts"] for m in found["members"])


def test_a_session_that_is_done_is_not_dead(door):
    """Whatever its members sign."""
    done(door.ledger, 0, "abcd")
    assert sessions(door)[0]["proven_dead"] is False


def test_blame_is_told_in_words(door):
    door.ledger.blame(AT, "b", blames.FALSE_REVEAL)
    [blame] = sessions(door)[0]["blamed"]
    assert (blame["client"], blame["cause"]) == ("b", "false_reveal")
    assert blame["words"] == "revealed shares that were not dealt"
    members = get(door, f"/rounds/{NUMBER}/sessions/0")["members"]
    assert [m["client"] for m in members if m["blamed"]] == ["b"]


def test_no_answer_has_what_was_sent(door):
    """Neither contents, nor hex of their digests."""
    done(door.ledger, 0, "abd")
    abandoned(door.ledger, 1, agreed="e", closing="fgh")
    paths = (f"/rounds/{NUMBER}", *(f"/rounds/{NUMBER}/sessions{n}" for n in ("", "/0", "/1")))
    for path in paths:
        text = json.dumps(get(door, path))
        assert "secret" not in text
        assert not re.search(r"[0-9a-f]{64}", text)


def test_a_round_without_sessions(door):
    """Plain rounds have none, and there is no other session."""
    assert get(door, "/rounds/1")["sessions"] == []
    assert get(door, "/rounds/1/sessions") == {"sessions": []}
    status, found = door.ask("GET", f"/runs/{RUN}/rounds/{NUMBER}/sessions/2")
    assert (status, "sessions 0 to 1" in found["error"]["message"]) == (404, True)
    status, found = door.ask("GET", f"/runs/{RUN}/rounds/9/sessions")
    assert (status, "no round 9" in found["error"]["message"]) == (404, True)


def test_a_masked_run_has_its_claim(door):
    """The least sum has the threshold of the smallest session, not its size."""
    claim = get(door)["masking"]
    assert claim["words"] == "the server sees sums of 3 to 4 devices"
    assert (claim["smallest_session"], claim["largest_session"], claim["colluders"]) == (3, 4, 1)


def test_every_state_has_words(door):
    """Also that of a session that computes its sum."""
    at, ledger = AT, door.ledger
    seen = set()
    for state, sets in (
        (SessionState.MASKING, {"shared": "abcd"}),
        (SessionState.FROZEN, {}),
        (SessionState.AGREEING, {}),
        (SessionState.REVEALING, {}),
        (SessionState.UNMASKING, {"revealed": "abc"}),
    ):
        if state is SessionState.FROZEN:
            send(ledger, phases.BODY, "abc")
            ledger.freeze_session(at)
        else:
            ledger.move_session(at, state, **sets)
        seen.add(sessions(door)[0]["words"])
    assert len(seen) == 5
