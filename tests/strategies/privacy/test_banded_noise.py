"""The noise of the banded mechanism as it runs: its integers, its memory and its errors."""

import math

import numpy as np
import pytest

from fedloom.strategies import DELTA, Full, Partial, TensorSpec
from fedloom.strategies.exact.partial import UNIT_BITS
from fedloom.strategies.privacy import Privacy, Release, grid_exponent
from fedloom.strategies.privacy.accounting import Releases, sensitivity
from fedloom.strategies.privacy.banded import COEFFICIENT_BITS, factor
from fedloom.strategies.privacy.banded_noise import RoundNoise, add_round, noise_by_round
from fedloom.strategies.privacy.discrete import sampler
from support.streams import hashed

STREAM = hashed("banded")
SPECS = {
    "w": TensorSpec(shape=(9000,), dtype=np.dtype(np.float32)),
    "b/c": TensorSpec(shape=(3,), dtype=np.dtype(np.float32)),
}


def release_of(size=None, *, rounds=20, goal=1, noise=1.0, **settings):
    specs = SPECS if size is None else {"w": replace_size(size)}
    table = Privacy(clip=1.0, noise_multiplier=noise, delta=1e-5, **settings)
    made = factor(table.num_bands, rounds) if table.mechanism == "dp_bandmf" else None
    return Release(settings=table, noise_multiplier=noise, goal=goal, specs=specs, factor=made)


def replace_size(size):
    return TensorSpec(shape=(size,), dtype=np.dtype(np.float32))


def empty(release):
    specs = {(DELTA, name): spec for name, spec in release.specs.items()}
    grid = grid_exponent(release.noise_multiplier, 1.0, 50, release.settings.grid_bits)
    return Partial(specs, grid, narrow=True)


def rounds_of(release, rounds, *, updates=None, memory=None, first=1):
    """The releases of some rounds, in units of the clip, and the memory after each."""
    memory, found, memories = dict(memory or {}), [], []
    for step in range(first - 1, first - 1 + rounds):
        partial = empty(release)
        if updates is not None:
            values = np.full(release.specs["w"].size, updates[step])
            partial.add_array((DELTA, "w"), Full(), 1 << UNIT_BITS, values)
        number = 2 * step + 1  # some rounds were abandoned
        means, memory = release.means(partial, memory, round=number, step=step, stream=STREAM)
        size = release.specs["w"].size
        found.append(means.mean_block((DELTA, "w"), 0, size)[0] * release.goal)
        memories.append(memory)
    return np.array(found), memories


BANDED = {"mechanism": "dp_bandmf", "separation": 4, "bands": 4}


def test_the_matrix_times_the_noise_is_fresh_noise():
    """C w is independent, of the claimed deviation, in every round."""
    release = release_of(**BANDED, noise=3.0)
    noise, _ = rounds_of(release, 9)
    column = np.array(release.factor.coefficients) * 2.0**-COEFFICIENT_BITS
    fresh = np.array(
        [sum(c * noise[t - k] for k, c in enumerate(column) if k <= t) for t in range(9)]
    )
    deviations = fresh.std(axis=1)
    assert np.abs(deviations / 3.0 - 1).max() < 5 / math.sqrt(2 * 9000)
    others = np.corrcoef(fresh) - np.eye(9)
    assert np.abs(others).max() < 5 / math.sqrt(9000)
    assert np.corrcoef(noise)[4, 5] < -0.2  # and the noise itself is correlated


def test_noise_covers_the_clip_and_all_roundings():
    """The clip, half a unit for each coordinate, and one more in each later round."""
    release = release_of(**BANDED)
    unit = math.ldexp(1.0, empty(release).exponent)
    assert 2**24 <= unit < 2**25
    column = np.array(release.factor.coefficients) * 2.0**-COEFFICIENT_BITS
    size = 9003
    for m in range(1, 5):
        length = np.linalg.norm(column[:m])
        moved = length * (unit + math.sqrt(size) / 2) + math.sqrt((m - 1) * size)
        assert release._sigma(empty(release), {}) >= moved / length


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_a_client_moves_the_centre_by_its_column_and_less_than_one_unit(lag):
    """For fixed earlier releases, as in the proof: a client's update changes the past noise."""
    made, specs = factor(4, 20), {"w": replace_size(4096)}
    rng = np.random.default_rng(lag)
    past = {n: rng.integers(-(2**26), 2**26, 4096) for n in (1, 2, 3, 4)}
    update = rng.integers(-(2**24), 2**24, 4096)

    def next_noise(noise):
        memory = {}
        for number, values in noise.items():
            kept = RoundNoise(number, f"{number:064x}", {}, STREAM)
            memory[f"note/{number}"] = np.frombuffer(bytes.fromhex(kept.digest), np.uint8)
            memory[f"noise/{number}/w"] = kept.sealed("w", 0, values)
        kept, _ = add_round(
            memory, made, sampler(2.0**24), specs, round=5, digest="d", stream=STREAM
        )
        return kept.block("w", 0, 4096)

    moved = next_noise(past) - next_noise({**past, 5 - lag: past[5 - lag] + update})
    wanted = made.coefficients[lag] * 2.0**-COEFFICIENT_BITS * update
    assert np.abs(moved - wanted).max() < 1
    assert np.abs(moved - wanted).max() > 0.9  # so the whole unit is needed
    before = {**past, 1: past[1] + update}
    assert (next_noise(past) == next_noise(before)).all()  # four rounds ago: nothing moves


def test_noise_is_replayed_and_never_used_for_two_histories():
    """After a crash it is the same; after another sum all later rounds have other noise."""
    release = release_of(**BANDED, noise=1e-3)
    sums = [0.0, 0.25, 0.25, 0.0, 0.25]
    whole, memories = rounds_of(release, 5, updates=sums)
    again, _ = rounds_of(release, 3, updates=sums, memory=memories[1], first=3)
    np.testing.assert_array_equal(again, whole[2:])
    other, _ = rounds_of(release, 5, updates=[0.125, *sums[1:]])
    for t in range(5):
        assert abs(np.corrcoef(other[t], whole[t])[0, 1]) < 5 / math.sqrt(9000)


def test_any_block_has_the_same_noise():
    release = release_of(**BANDED)
    means, _ = release.means(empty(release), {}, round=1, step=0, stream=STREAM)
    whole, _ = means.mean_block((DELTA, "w"), 0, 9000)
    for start, stop in [(0, 5), (3, 8200), (8191, 8193), (8999, 9000)]:
        np.testing.assert_array_equal(
            means.mean_block((DELTA, "w"), start, stop)[0], whole[start:stop]
        )
    assert means.mean_block((DELTA, "b/c"), 0, 3)[0].all()


@pytest.mark.parametrize(("bands", "arrays"), [(1, 0), (2, 1), (4, 3)])
def test_memory_does_not_grow_beyond_the_bands(bands, arrays):
    """It keeps one array of 4 bytes a coordinate for each band but one."""
    release = release_of(**{**BANDED, "bands": bands})
    _, memories = rounds_of(release, 8)
    kept = noise_by_round(memories[-1])
    assert sorted(kept) == [15, 13, 11][:arrays][::-1]
    assert sum(a.nbytes for each in kept.values() for a in each.values()) == arrays * 4 * 9003
    assert len(memories[-1]) <= 3 * max(arrays, 1)


def test_what_is_kept_does_not_tell_the_noise():
    """Without the key it is unrelated to the noise, and looks uniform."""
    release = release_of(**BANDED)
    noise, memories = rounds_of(release, 3)
    kept = noise_by_round(memories[-1])[5]["w"].astype(float)
    assert abs(np.corrcoef(kept, noise[2])[0, 1]) < 5 / math.sqrt(9000)
    assert abs(kept.std() / (2**32 / math.sqrt(12)) - 1) < 0.02


def test_bands_of_one_are_independent_noise():
    release = release_of(**{**BANDED, "bands": 1}, noise=2.0)
    noise, _ = rounds_of(release, 6)
    assert np.abs(np.corrcoef(noise) - np.eye(6)).max() < 5 / math.sqrt(9000)


@pytest.mark.parametrize("every", [50, pytest.param(250, marks=pytest.mark.long)])
def test_noise_over_1000_rounds_is_a_third_of_the_trees(every):
    """Drawn by the code that runs, at equal epsilon, for a client in one of so many rounds."""
    rounds, size = 1000, 256
    drawn = {}
    for name, settings in {
        "tree": {"mechanism": "dp_ftrl", "restart_every": every},
        "banded": {"mechanism": "dp_bandmf", "separation": every, "bands": every},
    }.items():
        release = release_of(size, rounds=rounds, **settings)
        moved = sensitivity(Releases.of(release.settings, 1.0, 1, rounds), rounds)
        noise, _ = rounds_of(release, rounds)
        drawn[name] = moved * np.cumsum(noise, axis=0)
        if name == "banded":
            wanted = release.factor.prefix_noise(rounds)
            found = np.cumsum(noise, axis=0).std(axis=1)
            assert np.abs(found / wanted - 1).max() < 6 / math.sqrt(2 * size)
    mean = np.sqrt(np.mean(drawn["tree"] ** 2) / np.mean(drawn["banded"] ** 2))
    largest = drawn["tree"].std(axis=1).max() / drawn["banded"].std(axis=1).max()
    assert mean > 3
    assert largest > 3
