"""Robust rules over the means of sessions, against numpy."""

import numpy as np
import pytest

from fedloom.strategies.aggregation import TooFewUpdatesError
from fedloom.strategies.exact.partial import Full, Partial, Slice, TensorSpec, weight_units
from fedloom.strategies.masking.over_sessions import OverSessions, SessionUpdates
from fedloom.strategies.registry import aggregation

KEY, OTHER = ("delta", "w"), ("delta", "v")
SPECS = {
    KEY: TensorSpec(shape=(70_000,), dtype=np.dtype("f4")),
    OTHER: TensorSpec(shape=(5,), dtype=np.dtype("f4")),
}
EXPONENT = 20


def rounded(values, weight):
    scale = weight * 2**EXPONENT
    return np.rint(values.astype(np.float64) * scale) / scale


def sessions(sizes=(4, 4, 3, 3, 3), seed=0, weight=1.0):
    """Sums of sessions of random updates, and their means by numpy alone."""
    rng = np.random.default_rng(seed)
    sums, means = [], []
    for size in sizes:
        total, moved = Partial(SPECS, EXPONENT, narrow=True), []
        for _ in range(size):
            update = {key: rng.normal(size=s.size).astype(np.float32) for key, s in SPECS.items()}
            for key, values in update.items():
                total.add_array(key, Full(), weight_units(weight), values)
            total.count += 1
            moved.append(update)
        sums.append((total, size * weight))
        means.append(
            {key: np.mean([rounded(m[key], weight) for m in moved], axis=0) for key in SPECS}
        )
    return sums, means


def reduced(rule, sums, last=None):
    found = rule.reduce(SessionUpdates(sums), last or {})
    return {key: found.mean_block(key, 0, spec.size)[0] for key, spec in SPECS.items()}


def norms(means, centre=None):
    flat = np.stack([np.concatenate([mean[key] for key in sorted(SPECS)]) for mean in means])
    if centre is not None:
        flat = flat - np.concatenate([centre[key] for key in sorted(SPECS)])
    return np.linalg.norm(flat, axis=1)


def test_the_median_of_sessions():
    sums, means = sessions()
    found = reduced(OverSessions(aggregation("median")), sums)
    for key in SPECS:
        wanted = np.median([mean[key] for mean in means], axis=0)
        np.testing.assert_allclose(found[key], wanted, rtol=1e-12, atol=1e-15)


def test_the_trimmed_mean_of_sessions():
    sums, means = sessions()
    found = reduced(OverSessions(aggregation("trimmed_mean", {"fraction": 0.2})), sums)
    for key in SPECS:
        wanted = np.sort([mean[key] for mean in means], axis=0)[1:-1].mean(axis=0)
        np.testing.assert_allclose(found[key], wanted, rtol=1e-12, atol=1e-15)


def test_norms_of_sessions_are_bounded_and_weigh_as_their_members():
    sums, means = sessions(weight=3.0)
    found = reduced(OverSessions(aggregation("norm_bounding")), sums)
    lengths = norms(means)
    factors = np.minimum(1, np.median(lengths) / lengths)
    weights = np.array([4, 4, 3, 3, 3]) * 3.0
    for key in SPECS:
        wanted = np.tensordot(weights * factors, [mean[key] for mean in means], 1) / weights.sum()
        np.testing.assert_allclose(found[key], wanted, rtol=1e-9, atol=1e-12)


def test_sessions_are_clipped_about_the_last_mean():
    sums, means = sessions()
    last = {"w": np.full(SPECS[KEY].size, 0.1), "v": np.full(5, -0.1)}
    rule = OverSessions(aggregation("centered_clipping", {"radius": 100.0}))
    assert rule.remembers
    found = reduced(rule, sums, last)
    centre = {KEY: last["w"], OTHER: last["v"]}
    factors = np.minimum(1, 100.0 / norms(means, centre))
    for key in SPECS:
        steps = [f * (mean[key] - centre[key]) for f, mean in zip(factors, means, strict=True)]
        np.testing.assert_allclose(found[key], centre[key] + np.mean(steps, axis=0), rtol=1e-9)


def lie(total):
    total.add_array(OTHER, Full(), weight_units(1.0), np.full(5, 1e4, np.float32))


@pytest.mark.parametrize("name", ["median", "trimmed_mean"])
def test_fewer_than_half_of_the_sessions_may_lie(name):
    """With one liar in each of f sessions a coordinate stays among the others' means."""
    rule = OverSessions(aggregation(name, {"fraction": 0.4} if name == "trimmed_mean" else {}))
    assert rule.tolerated(5) == 2
    sums, means = sessions()
    lie(sums[1][0])
    lie(sums[4][0])
    found = reduced(rule, sums)[OTHER]
    honest = np.array([means[place][OTHER] for place in (0, 2, 3)])
    assert (found >= honest.min(axis=0) - 1e-12).all()
    assert (found <= honest.max(axis=0) + 1e-12).all()
    lie(sums[2][0])
    assert reduced(rule, sums)[OTHER].min() > 100


def test_a_lie_moves_clipped_sessions_by_a_radius_at_most():
    """F / m of the radius; of the mean it would be f / m of the lie."""
    rule = OverSessions(aggregation("centered_clipping", {"radius": 2.0}))
    sums, _ = sessions()
    before = reduced(rule, sums)
    lie(sums[1][0])
    after = reduced(rule, sums)
    away = np.sqrt(sum(np.square(after[key] - before[key]).sum() for key in SPECS))
    assert 0.1 < away <= 2 * 2.0 / 5
    assert rule.tolerated(5) == 0  # its theorem is of another radius, and of many rounds


def test_too_few_sessions_are_refused():
    for name, settings, least in (
        ("median", {}, 3), ("norm_bounding", {}, 3),
        ("trimmed_mean", {"fraction": 0.2}, 5), ("trimmed_mean", {"fraction": 0.34}, 3),
    ):  # fmt: skip
        rule = OverSessions(aggregation(name, settings))
        assert rule.min_updates == least
        sums, _ = sessions((2,) * (least - 1))
        with pytest.raises(TooFewUpdatesError, match=f"at least {least} sessions"):
            rule.reduce(SessionUpdates(sums), {})
        rule.reduce(SessionUpdates(sessions((2,) * least)[0]), {})


def test_other_rules_are_not_over_sessions():
    for name, settings in (("krum", {"num_byzantine": 1}), ("mean", {}), ("geometric_median", {})):
        with pytest.raises(ValueError, match="Expected one of median, trimmed_mean"):
            OverSessions(aggregation(name, settings))
    with pytest.raises(ValueError, match="Expected fraction > 0"):
        OverSessions(aggregation("trimmed_mean", {"fraction": 0.0}))


def test_coordinates_without_a_session_have_no_mean():
    total = Partial(SPECS, EXPONENT, narrow=True)
    some = Slice(((0, 3),))
    total.add_array(OTHER, some, weight_units(1.0), np.ones(3, np.float32))
    updates = SessionUpdates([(total, 1.0)] * 3)
    assert not updates.covered(KEY)
    assert updates.one(0, KEY) is None
    values, covered = updates.block(OTHER, 1, 5)
    assert covered.tolist() == [[True, True, False, False]] * 3
    assert values.tolist() == [[1.0, 1.0, 0.0, 0.0]] * 3
    found = OverSessions(aggregation("median")).reduce(updates, {})
    assert found.mean_block(OTHER, 0, 5)[1].tolist() == [True] * 3 + [False] * 2
    assert SessionUpdates([]).specs == {}
