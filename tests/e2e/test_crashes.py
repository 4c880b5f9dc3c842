"""Nothing acknowledged is lost and nothing counts twice, whoever is killed, wherever."""

import pytest

from support.crash import BUFFER, NUM_CLIENTS, CrashTest


@pytest.mark.long
@pytest.mark.e2e
def test_a_run_under_fire_ends_with_the_bits_of_the_algebra(tmp_path):
    """SIGKILLs at seeded places leave the model's bits and every count as they are."""
    report = CrashTest(tmp_path, kills=4, seed=20261120, rounds=2).run()
    assert report.num_kills >= 3, report.kills
    assert any(place.startswith("server") for place in report.kills)
    assert any(place.startswith("clients") for place in report.kills)
    assert report.same_bits
    assert set(report.counted.values()) == {NUM_CLIENTS}
    assert report.acknowledged > 0
    assert report.lost == []


@pytest.mark.e2e
@pytest.mark.long
def test_a_rule_that_looks_at_each_update_survives_as_well(tmp_path):
    """Its spool is read again after every kill, to the bits that the algebra alone gives."""
    rule = "centered_clipping"  # needs distances, and the last round's means
    report = CrashTest(tmp_path, kills=6, seed=4, rounds=2, aggregation=rule).run()
    assert report.num_kills >= 4, report.kills
    assert report.same_bits
    assert set(report.counted.values()) == {NUM_CLIENTS}
    assert report.lost == []


@pytest.mark.e2e
@pytest.mark.long
def test_what_clients_remember_survives_as_well(tmp_path):
    """Each control variate is that of the last round that counted, whoever was killed since."""
    scaffold = {"name": "scaffold", "clients": NUM_CLIENTS}
    report = CrashTest(tmp_path, kills=10, seed=5, rounds=3, strategy=scaffold).run()
    assert report.num_kills >= 7, report.kills
    assert any(place.startswith("clients") for place in report.kills)
    assert report.same_bits
    assert set(report.counted.values()) == {NUM_CLIENTS}
    assert report.lost == []


@pytest.mark.e2e
@pytest.mark.long
def test_buffers_under_fire_hold_what_the_ledger_says_and_nothing_else(tmp_path):
    """Killed anywhere, a run of buffers has the bits of its recorded updates and staleness."""
    report = CrashTest(tmp_path, kills=16, seed=20261121, rounds=16, buffered=True).run()
    assert report.num_kills >= 12, report.kills
    assert any(place.startswith("server") for place in report.kills)
    assert report.same_bits
    assert min(report.counted.values()) >= BUFFER["goal"]
    assert len(report.counted) == 16
    assert max(report.staleness) >= 1, "nobody was at work over a commit"
    assert report.acknowledged > 0
    assert report.lost == []


@pytest.mark.e2e
@pytest.mark.long
def test_a_private_run_under_fire_has_the_noise_of_one_in_peace(tmp_path):
    """Killed anywhere, it releases one noisy sum a round, and its clip goes on from the last."""
    pytest.importorskip("dp_accounting")
    report = CrashTest(tmp_path, kills=6, seed=11, rounds=2, private=True).run()
    assert report.num_kills >= 4, report.kills
    assert report.same_bits
    assert set(report.counted.values()) == {NUM_CLIENTS}
    assert report.lost == []
