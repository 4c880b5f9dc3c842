import math

import numpy as np
import pytest

from fedloom.strategies import DELTA, Full, Mask, Partial, TensorSpec
from fedloom.strategies.exact.partial import SCALAR, UNIT_BITS
from fedloom.strategies.privacy import Privacy, Release, grid_exponent
from fedloom.strategies.privacy.release import WITHIN
from support.streams import hashed

ONE = 1 << UNIT_BITS
SPECS = {
    "w": TensorSpec(shape=(40, 50), dtype=np.dtype(np.float32)),
    "b": TensorSpec(shape=(7,), dtype=np.dtype(np.float32)),
}
STREAM = hashed("release")


def release_of(goal=10, noise_multiplier=1.0, **settings):
    table = {"clip": 1.0, "noise_multiplier": noise_multiplier, "delta": 1e-5, **settings}
    return Release(
        settings=Privacy(**table), noise_multiplier=noise_multiplier, goal=goal, specs=SPECS
    )


def partial_of(release, updates, within=()):
    specs = {(DELTA, name): spec for name, spec in SPECS.items()}
    if release.settings.adaptive:
        specs[SCALAR, WITHIN] = TensorSpec(shape=(), dtype=np.dtype(np.float64))
    grid = grid_exponent(release.noise_multiplier, release.settings.clip, 50)
    partial = Partial(specs, grid, narrow=True)
    for update in updates:
        for name, values in update.items():
            partial.add_array((DELTA, name), Full(), ONE, values)
        partial.count += 1
    for bit in within:
        partial.add_array((SCALAR, WITHIN), Full(), ONE, np.array([0.5 if bit else -0.5]))
    return partial


def ones(scale=0.01):
    return {name: np.full(spec.shape, scale) for name, spec in SPECS.items()}


def means_of(release, partial, memory=None, stream=STREAM, **at):
    at = {"round": 1, "step": 0, **at}
    means, after = release.means(partial, memory or release.init(), stream=stream, **at)
    return means.mean_block((DELTA, "w"), 0, 2000)[0], after


def test_noise_has_the_claimed_deviation_over_the_goal():
    """Means are off by z·C/goal, for any number of reports: here 3 of 10."""
    release = release_of(goal=10, noise_multiplier=2.0)
    found, _ = means_of(release, partial_of(release, [ones()] * 3))
    error = found - 0.03 / 10
    assert abs(error.std() / 0.2 - 1) < 5 / math.sqrt(2 * 2000)
    assert abs(error.mean()) < 5 * 0.2 / math.sqrt(2000)


def test_the_denominator_is_always_the_goal():
    """With nearly no noise, a value that one of two covers is still divided by the goal."""
    release = release_of(goal=4, noise_multiplier=1e-9)
    partial = partial_of(release, [])
    bits = np.zeros(2000, bool)
    bits[:5] = True
    partial.add_array((DELTA, "w"), Mask(bits), ONE, np.full(5, 0.5))
    partial.add_array((DELTA, "w"), Full(), ONE, np.full(2000, 0.25))
    means, _ = release.means(partial, {}, round=1, step=0, stream=STREAM)
    found = means.mean_block((DELTA, "w"), 0, 2000)[0]
    assert np.allclose(found[:5], 0.75 / 4, atol=1e-6)
    assert np.allclose(found[5:], 0.25 / 4, atol=1e-6)
    assert means.count == 4


def test_uncovered_coordinates_have_noise_too():
    """An empty round looks like a full one: every coordinate is covered and noisy."""
    release = release_of()
    means, _ = release.means(partial_of(release, []), {}, round=1, step=0, stream=STREAM)
    block, covered = means.mean_block((DELTA, "b"), 0, 7)
    assert covered is True
    assert means.covered((DELTA, "b"))
    assert (block != 0).all()


def test_noise_is_replayed_and_never_used_for_two_sums():
    """A sum has the same noise after a crash; another sum of the same round has other noise."""
    release = release_of()
    first, _ = means_of(release, partial_of(release, [ones()]))
    again, _ = means_of(release, partial_of(release, [ones()]))
    other, _ = means_of(release, partial_of(release, [ones(0.02)]))
    later, _ = means_of(release, partial_of(release, [ones()]), round=2)
    key, _ = means_of(release, partial_of(release, [ones()]), stream=hashed("another"))
    assert np.array_equal(first, again)
    for different in (other, later, key):
        assert np.abs(np.corrcoef(different, first)[0, 1]) < 5 / math.sqrt(2000)


def test_noise_does_not_depend_on_the_order_or_the_blocks():
    """Shards merged in any order, read in any blocks, give the same bits."""
    release = release_of()
    rng = np.random.default_rng(0)
    updates = [{n: rng.normal(size=s.shape) / 100 for n, s in SPECS.items()} for _ in range(5)]
    whole = partial_of(release, updates)
    merged = partial_of(release, updates[3:]) + partial_of(release, updates[:3])
    one, _ = release.means(whole, {}, round=3, step=2, stream=STREAM)
    two, _ = release.means(merged, {}, round=3, step=2, stream=STREAM)
    parts = [two.mean_block((DELTA, "w"), at, at + 400)[0] for at in range(0, 2000, 400)]
    assert np.array_equal(np.concatenate(parts), one.mean_block((DELTA, "w"), 0, 2000)[0])


def test_sums_keep_room_for_rounding():
    """The noise covers the clip and the rounding of an update to the grid."""
    release = release_of(noise_multiplier=1.0)
    partial = partial_of(release, [])
    means, _ = release.means(partial, {}, round=1, step=0, stream=STREAM)
    units = math.ldexp(1.0, partial.exponent)
    assert 2**20 <= units < 2**21
    assert means.noise.sampler.sigma >= units + math.sqrt(2007) / 2


def node_sum(release, partial, rounds):
    """The noise on the sum of the first `rounds` rounds, and the memory after them."""
    memory, total = release.init(), np.zeros(2000)
    noises = []
    for step in range(rounds):
        means, memory = release.means(partial, memory, round=step + 1, step=step, stream=STREAM)
        total = total + means.mean_block((DELTA, "w"), 0, 2000)[0] * release.goal
        noises.append(total.copy())
    return noises, memory


def test_tree_noise_of_a_prefix_is_that_of_its_nodes():
    """After t rounds the noise has the variance of as many nodes as t has ones in binary."""
    release = release_of(
        goal=1, noise_multiplier=3.0, mechanism="dp_ftrl", restart_every=16, clip=1.0
    )
    noises, memory = node_sum(release, partial_of(release, []), 13)
    for done, noise in enumerate(noises, 1):
        nodes = done.bit_count()
        assert abs(noise.var() / (9 * nodes) - 1) < 6 * math.sqrt(2 / 2000), done
    assert sorted(memory) == ["tree.0", "tree.2", "tree.3"]  # 13 = 8 + 4 + 1


def test_a_new_tree_begins_after_its_rounds():
    """It shares no noise with the first, whose noise stays in the sum."""
    release = release_of(goal=1, noise_multiplier=3.0, mechanism="dp_ftrl", restart_every=4)
    noises, memory = node_sum(release, partial_of(release, []), 8)
    assert abs(noises[3].var() / 9 - 1) < 0.2
    assert abs(noises[7].var() / 18 - 1) < 0.2
    second = noises[7] - noises[3]
    assert abs(np.corrcoef(second, noises[3])[0, 1]) < 0.15
    assert sorted(memory) == ["tree.2"]


@pytest.mark.parametrize(("share", "moves"), [(1.0, -1), (0.0, 1), (0.5, 0)])
def test_clip_follows_the_quantile(share, moves):
    """Andrew et al. 2021: C·exp(-η(b - γ)), down if all are within it, up if none is."""
    release = release_of(goal=1000, clip_quantile=0.5, clip_count_noise=1.0)
    bits = [number < 1000 * share for number in range(1000)]
    _, memory = means_of(release, partial_of(release, [], bits))
    wanted = math.exp(-0.2 * (share - 0.5))
    assert float(memory["clip"]) == pytest.approx(wanted, rel=0.2 * 6 / 1000)
    assert release.clip(memory) == float(memory["clip"])
    assert np.sign(round(float(memory["clip"]) - 1, 2)) == moves


def test_an_adapted_clip_scales_the_noise():
    release = release_of(goal=1, noise_multiplier=1.0, clip_quantile=0.5, clip_count_noise=20.0)
    partial = partial_of(release, [], [])
    found, _ = means_of(release, partial, {"clip": np.asarray(0.25)})
    assert abs(found.std() / (0.25 * release.value_noise) - 1) < 0.1


@pytest.mark.parametrize("number", [0, 1, 5])
def test_noise_and_divisor_do_not_depend_on_the_number_drawn(number):
    """With Poisson sampling, where one client is expected: the sum is divided by that."""
    release = release_of(goal=2, sampling="poisson", population=4)
    sent = [ones() for _ in range(number)]
    found, _ = release.means(
        partial_of(release, sent), release.init(), round=1, step=0, stream=STREAM
    )
    without, _ = release.means(
        partial_of(release, []), release.init(), round=1, step=0, stream=STREAM
    )
    assert found.noise.sampler == without.noise.sampler
    assert (found.goal, found.count) == (2, 2)
    total = partial_of(release, sent).sum_block((DELTA, "w"), 0, 1)[0]
    noise = found.noise.block("w", 0, 1)[0]
    mean, _ = found.mean_block((DELTA, "w"), 0, 1)
    assert mean[0] == (int(total) + int(noise)) / 2 / 2.0**found.partial.exponent
