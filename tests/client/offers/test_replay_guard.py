"""An old offer that is played back makes a device do nothing."""

import logging

import pytest

from fedloom.client.offers.replay_guard import FILE, KEEP_RUNS, ReplayGuard
from fedloom.protocol.errors import Code, Refusal


def is_old(answers, run, number, issued_us):
    """Is such an offer turned away?"""
    try:
        answers.check(run, number, issued_us)
    except Refusal as refusal:
        return refusal.code is Code.STALE_ROUND
    return False


def answered(answers, run, number, issued_us):
    """A round from its offer to its end."""
    answers.check(run, number, issued_us)
    answers.saw(run, issued_us)
    answers.settle(run, number)


def test_offers_of_answered_rounds_are_old_also_after_a_restart(tmp_path):
    """Those of earlier rounds too, but not those of later rounds or of other runs."""
    answers = ReplayGuard(tmp_path)
    assert not is_old(answers, "a-1", 3, 70)
    answered(answers, "a-1", 3, 70)
    for each in (answers, ReplayGuard(tmp_path)):
        assert [is_old(each, "a-1", number, 70) for number in (2, 3, 4)] == [True, True, False]
        assert not is_old(each, "b-1", 3, 70)


def test_a_later_offer_of_an_answered_round_is_the_servers_own(tmp_path):
    """It was set back to a backup; what it said before that is old all the same."""
    answers = ReplayGuard(tmp_path)
    answered(answers, "a", 3, 70)
    answered(answers, "a", 4, 80)
    assert not is_old(answers, "a", 3, 90)
    answered(answers, "a", 3, 90)
    assert is_old(answers, "a", 4, 80)
    assert is_old(answers, "a", 3, 90)


def test_a_server_whose_clock_goes_back_is_not_turned_away(tmp_path):
    """New rounds are new, whenever they say that they were made."""
    answers = ReplayGuard(tmp_path)
    answered(answers, "a", 3, 70)
    assert not is_old(answers, "a", 4, 10)


def test_every_copy_of_an_offer_is_old_once_the_round_is_over(tmp_path):
    """A reconnect brings a second one, which is the newest that counts."""
    answers = ReplayGuard(tmp_path)
    answers.saw("a", 70)
    answers.saw("a", 75)
    answers.settle("a", 1)
    assert is_old(answers, "a", 1, 75)


def test_the_oldest_runs_are_forgotten(tmp_path):
    """The file stays small; a run that goes on stays in it."""
    answers = ReplayGuard(tmp_path)
    answered(answers, "long", 1, 1)
    for number in range(KEEP_RUNS):
        answered(answers, f"run-{number}", 1, 1)
        answered(answers, "long", number + 2, 1)
    assert is_old(ReplayGuard(tmp_path), "long", KEEP_RUNS, 1)
    assert not is_old(ReplayGuard(tmp_path), "run-0", 1, 1)


@pytest.mark.parametrize("text", ["", "[]", '{"a": []}', '{"a": 3}', "\udcff"])
def test_a_broken_file_is_warned_of_and_left_behind(tmp_path, text, caplog):
    """It must not keep a device from its work."""
    (tmp_path / FILE).write_bytes(text.encode(errors="surrogateescape"))
    with caplog.at_level(logging.WARNING):
        assert not is_old(ReplayGuard(tmp_path), "a", 1, 1)
    assert caplog.records


def test_a_full_disk_costs_only_the_memory_over_restarts(tmp_path, caplog):
    """The agent goes on."""
    answers = ReplayGuard(tmp_path / "gone")
    answered(answers, "a", 1, 1)
    assert is_old(answers, "a", 1, 1)
    assert "not noted" in caplog.text
