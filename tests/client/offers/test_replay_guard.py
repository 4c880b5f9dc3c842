"""A replayed offer is refused."""

import logging

import pytest

from fedloom.client.offers.replay_guard import FILE, KEEP_RUNS, ReplayGuard
from fedloom.protocol.errors import Code, Refusal


def is_old(answers, run, number, issued_us):
    """Whether such an offer is refused."""
    try:
        answers.check(run, number, issued_us)
    except Refusal as refusal:
        return refusal.code is Code.STALE_ROUND
    return False


def answered(answers, run, number, issued_us):
    """Play a round from its offer to its end."""
    answers.check(run, number, issued_us)
    answers.saw(run, issued_us)
    answers.settle(run, number)


def test_offers_of_answered_rounds_are_refused_also_after_a_restart(tmp_path):
    """Earlier rounds too, but not later rounds or other runs."""
    answers = ReplayGuard(tmp_path)
    assert not is_old(answers, "a-1", 3, 70)
    answered(answers, "a-1", 3, 70)
    for each in (answers, ReplayGuard(tmp_path)):
        assert [is_old(each, "a-1", number, 70) for number in (2, 3, 4)] == [True, True, False]
        assert not is_old(each, "b-1", 3, 70)


def test_a_later_signed_offer_of_an_answered_round_is_accepted(tmp_path):
    """The server was restored from a backup; its offers from before that are still refused."""
    answers = ReplayGuard(tmp_path)
    answered(answers, "a", 3, 70)
    answered(answers, "a", 4, 80)
    assert not is_old(answers, "a", 3, 90)
    answered(answers, "a", 3, 90)
    assert is_old(answers, "a", 4, 80)
    assert is_old(answers, "a", 3, 90)


def test_a_new_round_is_accepted_after_the_servers_clock_went_back(tmp_path):
    answers = ReplayGuard(tmp_path)
    answered(answers, "a", 3, 70)
    assert not is_old(answers, "a", 4, 10)


def test_every_copy_of_an_offer_is_refused_after_the_round(tmp_path):
    """After a reconnect the server signs a second one; its time counts."""
    answers = ReplayGuard(tmp_path)
    answers.saw("a", 70)
    answers.saw("a", 75)
    answers.settle("a", 1)
    assert is_old(answers, "a", 1, 75)


def test_the_oldest_runs_are_forgotten(tmp_path):
    """The file stays small; an active run stays in it."""
    answers = ReplayGuard(tmp_path)
    answered(answers, "long", 1, 1)
    for number in range(KEEP_RUNS):
        answered(answers, f"run-{number}", 1, 1)
        answered(answers, "long", number + 2, 1)
    assert is_old(ReplayGuard(tmp_path), "long", KEEP_RUNS, 1)
    assert not is_old(ReplayGuard(tmp_path), "run-0", 1, 1)


@pytest.mark.parametrize("text", ["", "[]", '{"a": []}', '{"a": 3}', "\udcff"])
def test_a_damaged_file_is_ignored_with_a_warning(tmp_path, text, caplog):
    (tmp_path / FILE).write_bytes(text.encode(errors="surrogateescape"))
    with caplog.at_level(logging.WARNING):
        assert not is_old(ReplayGuard(tmp_path), "a", 1, 1)
    assert caplog.records


def test_on_a_full_disk_the_guard_works_until_a_restart(tmp_path, caplog):
    answers = ReplayGuard(tmp_path / "gone")
    answered(answers, "a", 1, 1)
    assert is_old(answers, "a", 1, 1)
    assert "could not be stored" in caplog.text
