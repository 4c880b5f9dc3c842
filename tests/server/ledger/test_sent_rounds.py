"""Rounds of a site: the parent's word decides which of them are committed, abandoned or undone."""

import time

import pytest

from fedloom.server.ledger import Ledger

MEASURED = {"training": {}, "evaluation": {}}


@pytest.fixture
def ledger(tmp_path):
    """Of a run of a parent with three training rounds and an evaluation, each sent."""
    ledger = Ledger.in_directory(tmp_path)
    row = {"id": "run", "name": "run", "spec": {"rounds": 3}, "state": "running", "model": "m"}
    ledger.add_run({**row, "reason": "", "upstream": "north"}, 100)
    yield ledger
    ledger.close()


def send(ledger, number, kind="train"):
    times = {"opened_at": 0.0, "deadline_at": 60.0}
    row = {"run": "run", "number": number, "kind": kind, "model_in": "m", **times}
    ledger.open_round(row, ["alice"])
    ledger.close_round("run", number)
    ledger.send_round("run", number, MEASURED)


def told(ledger, counted, over):
    """States after the parent's word, `undone` for a committed one that does not count any more."""
    ledger.settle_sent("run", "train", counted, over)
    rows = ledger.list_rounds("run")
    return [r.state if r.undone_at is None else "undone" for r in rows]


def test_a_round_counts_when_the_parent_says_so(ledger):
    """Not before, and not with a word on the round before it; a repeated word changes nothing."""
    send(ledger, 1)
    assert told(ledger, 0, 0) == ["sent"]
    for _ in range(2):
        assert told(ledger, 1, 1) == ["committed"]
        assert ledger.run("run").committed == 1
    send(ledger, 2)
    assert told(ledger, 1, 1) == ["committed", "sent"]


def test_a_round_that_the_parent_closed_without_it_is_abandoned(ledger):
    """Its reason is in words; the ones before stay committed."""
    send(ledger, 1)
    told(ledger, 1, 1)
    send(ledger, 2)
    assert told(ledger, 1, 2) == ["committed", "abandoned"]
    assert "without the sum of this site" in ledger.round("run", 2).reason
    assert ledger.run("run").committed == 1


def test_a_rollback_of_the_parent_undoes_rounds(ledger):
    """They are subtracted from those that the run has done."""
    for number in (1, 2):
        send(ledger, number)
        told(ledger, number, number)
    assert ledger.run("run").committed == 2
    assert told(ledger, 1, 2) == ["committed", "undone"]
    assert ledger.run("run").committed == 1


def test_an_evaluation_is_none_of_the_rounds_that_the_run_asked_for(ledger):
    """So a site does not show four of three rounds."""
    for number in (1, 2, 3):
        send(ledger, number)
        told(ledger, number, number)
    send(ledger, 4, "evaluate")
    assert told(ledger, 4, 4) == ["committed"] * 4
    assert ledger.run("run").committed == 3


def test_a_revoked_site_is_none(ledger):
    """A server whose only site was revoked holds the rounds of its parent for devices again."""
    for token, site in (("t1", "ward"), ("t2", "lab")):
        ledger.add_token(token, "hash", site, time.time() + 600, devices=7)
        ledger.enrol(token, token, time.time() + 600)
    assert ledger.sites() == {"lab": 7, "ward": 7}
    ledger.revoke("ward")
    assert ledger.sites() == {"lab": 7}
