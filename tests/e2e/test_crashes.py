"""Acknowledged updates count exactly once, for SIGKILLs of any process at any place."""

import pytest

from support.crash import BUFFER, NUM_CLIENTS, CrashTest
from support.marks import sampled


@pytest.mark.longest  # `make crash` does the same
@pytest.mark.e2e
def test_a_run_with_kills_has_the_computed_model(tmp_path):
    """SIGKILLs at seeded places change neither the model's bits nor any count."""
    report = CrashTest(tmp_path, kills=4, seed=20261120, rounds=2).run()
    assert report.num_kills >= 3, report.kills
    assert any(place.startswith("server") for place in report.kills)
    assert any(place.startswith("clients") for place in report.kills)
    assert report.same_bits
    assert set(report.counted.values()) == {NUM_CLIENTS}
    assert report.acknowledged > 0
    assert report.lost == []


@pytest.mark.longest
@pytest.mark.e2e
@pytest.mark.long
def test_a_run_of_a_robust_rule_with_kills_has_the_computed_model(tmp_path):
    """The rule reads its spool again after every kill."""
    rule = "centered_clipping"  # needs distances and the previous round's means
    report = CrashTest(tmp_path, kills=6, seed=4, rounds=2, aggregation=rule).run()
    assert report.num_kills >= 4, report.kills
    assert report.same_bits
    assert set(report.counted.values()) == {NUM_CLIENTS}
    assert report.lost == []


@pytest.mark.e2e
@pytest.mark.longest
def test_memories_of_clients_survive_kills(tmp_path):
    """Each control variate is that of the last committed round."""
    scaffold = {"name": "scaffold", "clients": NUM_CLIENTS}
    report = CrashTest(tmp_path, kills=10, seed=5, rounds=3, strategy=scaffold).run()
    assert report.num_kills >= 7, report.kills
    assert any(place.startswith("clients") for place in report.kills)
    assert report.same_bits
    assert set(report.counted.values()) == {NUM_CLIENTS}
    assert report.lost == []


@pytest.mark.e2e
@pytest.mark.longest
def test_a_buffered_run_with_kills_has_the_recorded_updates(tmp_path):
    """Its model has the bits of the updates and staleness in the ledger."""
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
def test_a_private_run_with_kills_has_the_same_noise(tmp_path):
    """It releases one noisy sum per round, and its clip continues from the last."""
    pytest.importorskip("dp_accounting")
    report = CrashTest(tmp_path, kills=6, seed=11, rounds=2, private=True).run()
    assert report.num_kills >= 4, report.kills
    assert report.same_bits
    assert set(report.counted.values()) == {NUM_CLIENTS}
    assert report.lost == []


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    sampled(
        [
            {"kills": 8, "seed": 7, "rounds": 3},
            {"kills": 8, "seed": 8, "rounds": 2, "aggregation": "centered_clipping"},
            {"kills": 8, "seed": 9, "rounds": 10, "buffered": True},
        ],
        3,
    ),
)
def test_a_run_whose_disk_is_lost_with_each_kill_has_the_computed_model(tmp_path, settings):
    """Models and updates are in an object store: sums, single updates and buffers are read back."""
    report = CrashTest(tmp_path, store=(tmp_path / "objects").as_uri(), **settings).run()
    assert any(place.startswith("server") for place in report.kills)
    assert report.same_bits
    assert report.acknowledged > 0
    assert report.lost == []
