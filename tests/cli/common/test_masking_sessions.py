"""Masking sessions in `fedloom round show`, of a real server with a filled ledger."""

import json

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.server.ledger.masking import blames
from fedloom.server.ledger.masking import sessions as phases
from support.door import Door
from support.masked_rounds import AT, NUMBER, RUN, abandoned, done, masked_ledger, send

SETS = ["SHARED", "SENT", "SIGNED", "REVEALED"]


@pytest.fixture
def door(tmp_path):
    """Two sessions that share: abcd and efgh."""
    folder = tmp_path / "state"
    folder.mkdir()
    masked_ledger(folder).close()
    with Door(folder) as door:
        door.ledger = door.contexts.ledger
        yield door


def show(door, *words):
    done = CliRunner().invoke(main, ["round", "show", "--dir", str(door.directory), *words])
    assert done.exit_code == 0, done.output
    return done.output


def lines(text):
    """The lines of the tables, as lists of words."""
    return [line.split() for line in text.splitlines()]


def test_a_masked_round_has_a_line_for_each_session(door):
    """What is not fixed yet is counted so far."""
    done(door.ledger, 0, "abd")
    send(door.ledger, phases.SHARES, "fg", session=1)
    text = show(door, RUN, str(NUMBER))
    assert "the server can read the sum of each, and no single update" in text
    head = [
        "SESSION",
        "STATE",
        "SIZE",
        "THRESHOLD",
        "COLLUDERS",
        "SHARED",
        "SENT",
        "SIGNED",
        "REVEALED",
    ]
    found = lines(text)
    first = found.index(head)
    assert found[first + 1] == ["0", "done", "4", "3", "1", "4", "3", "3", "3"]
    assert found[first + 2] == ["1", "sharing", "4", "3", "1", "2", "so", "far", "-", "-", "-"]


@pytest.mark.parametrize(
    ("closing", "says"),
    [
        ("ab", "2 of 4 members gave it up, of 3 that prove that nobody can ever unmask it"),
        ("abc", "3 of 4 members gave it up, which proves that nobody can ever unmask it"),
    ],
)
def test_an_abandoned_session_says_why_and_whether_it_is_dead(door, closing, says):
    abandoned(door.ledger, 0, closing=closing, reason="threshold not reached: 2 signed")
    door.ledger.blame(AT, "d", blames.FALSE_SHARES)
    text = show(door, RUN, str(NUMBER))
    assert "threshold not reached: 2 signed" in text
    assert says in text
    assert "d dealt shares of another secret" in text


def test_one_session_names_its_members_and_what_each_sent(door):
    """By phase; c sent no masked update, and nobody gave it up."""
    done(door.ledger, 0, "abd")
    text = show(door, RUN, str(NUMBER), "--session", "0")
    assert f"session 0 of round {NUMBER} of {RUN}  done" in text
    assert "up to 1 may drop out, and up to 1 may work with the server" in text
    rows = {row[0]: row[1:] for row in lines(text) if row and row[0] in ("a", "b", "c", "d")}
    assert {name: row[0] for name, row in rows.items()} == {
        "a": "yes", "b": "yes", "c": "no", "d": "yes",
    }  # fmt: skip
    assert [cell == "-" for cell in rows["c"][1:]] == [False, False, True, True, True]
    assert "secret" not in text


def test_json_has_the_same(door):
    done(door.ledger, 0, "abd")
    found = json.loads(show(door, RUN, str(NUMBER), "--json"))
    assert [each["masked"] for each in found["sessions"]] == [3, None]
    found = json.loads(show(door, RUN, str(NUMBER), "--session", "1", "--json"))
    assert [member["client"] for member in found["members"]] == list("efgh")


def test_a_plain_round_is_shown_as_before(door):
    assert "asking" not in show(door, RUN, "1")


def test_a_session_that_is_not_there_is_an_error(door):
    words = ["round", "show", "--dir", str(door.directory), RUN, "1", "--session", "0"]
    failed = CliRunner().invoke(main, words)
    assert failed.exit_code == 2
    assert "has no masking sessions" in failed.output
