"""The same clipping, rounds and noise as flwr's own functions, if flwr is installed.

Deliberate differences:

- flwr averages over the clients that answered, ours over the goal, so that a missing update is not
  visible.
- flwr counts the clipped clients; ours counts the others as in Andrew et al. 2021, so flwr's clip
  moves the other way.
- flwr adds noise for the updated clip, ours for the clip that was applied to the updates.
- flwr draws noise from numpy's generator.
"""

import numpy as np
import pytest

from fedloom.strategies import DELTA, FedAvg, Full, Partial, State, TensorSpec, weight_units
from fedloom.strategies.exact.partial import SCALAR
from fedloom.strategies.privacy import Privacy, Release, clip, finish
from fedloom.strategies.privacy.release import WITHIN
from fedloom.strategies.privacy.settings import noise_of_values
from support.streams import hashed

try:
    import flwr.supercore.differential_privacy as theirs
except ImportError:
    theirs = pytest.importorskip("flwr.common.differential_privacy")

SPECS = {
    "w": TensorSpec(shape=(6, 5), dtype=np.dtype(np.float64)),
    "b": TensorSpec(shape=(4,), dtype=np.dtype(np.float64)),
}
CLIENTS = 8


def release_of(**settings):
    table = {"clip": 0.7, "noise_multiplier": 1e-7, "delta": 1e-5, **settings}
    noise = table["noise_multiplier"]
    return Release(settings=Privacy(**table), noise_multiplier=noise, goal=CLIENTS, specs=SPECS)


def finished(release, model, state, updates, number):
    """One of our rounds: clipped, counted, summed, released."""
    counted = {(SCALAR, WITHIN): TensorSpec(shape=(), dtype=np.dtype(np.float64))}
    specs = {(DELTA, name): spec for name, spec in SPECS.items()}
    partial = Partial(specs | (counted if release.settings.adaptive else {}), 40, narrow=True)
    bound = float(state.slots["privacy"]["clip"]) if "privacy" in state.slots else 0.7
    for update in updates:
        clipped, within = clip([update[name] for name in SPECS], bound)
        for name, values in zip(SPECS, clipped, strict=True):
            partial.add_array((DELTA, name), Full(), weight_units(1.0), values)
        if release.settings.adaptive:
            bit = np.array([0.5 if within else -0.5])
            partial.add_array((SCALAR, WITHIN), Full(), weight_units(1.0), bit)
    stream = hashed("flwr")
    return finish(FedAvg(), release, state, model, partial, round=number, stream=stream)


def test_five_rounds_of_fixed_clipping_equal_flwrs():
    """Clients pull towards different targets, some beyond the clip; models agree to 1e-5."""
    rng = np.random.default_rng(0)
    targets = [
        {n: rng.normal(size=s.shape) * scale for n, s in SPECS.items()}
        for scale in np.linspace(0.05, 2, CLIENTS)
    ]
    ours = {name: np.zeros(spec.shape) for name, spec in SPECS.items()}
    state, flwr = State(), [ours[name].copy() for name in SPECS]
    for number in range(1, 6):
        updates = [{n: 0.5 * (t[n] - ours[n]) for n in SPECS} for t in targets]
        ours, state = finished(release_of(), ours, state, updates, number)
        results = []
        for target in targets:
            before = [array.copy() for array in flwr]
            after = [x + 0.5 * (target[n] - x) for x, n in zip(before, SPECS, strict=True)]
            theirs.compute_clip_model_update(after, before, 0.7)
            results.append(after)
        flwr = [np.mean(arrays, axis=0) for arrays in zip(*results, strict=True)]
        for name, array in zip(SPECS, flwr, strict=True):
            np.testing.assert_allclose(ours[name], array, rtol=0, atol=1e-5)


def test_noise_has_the_deviation_of_flwr():
    """z·C/n, here over 34 coordinates of 300 rounds."""
    release = release_of(noise_multiplier=1.5)
    model = {name: np.zeros(spec.shape) for name, spec in SPECS.items()}
    moved = []
    for number in range(1, 301):
        new, _ = finished(release, model, State(), [], number)
        moved += [new[name].ravel() for name in SPECS]
    values = np.concatenate(moved)
    wanted = theirs.compute_stdv(1.5, 0.7, CLIENTS)
    assert abs(values.std() / wanted - 1) < 5 / np.sqrt(2 * values.size)


def test_the_counts_share_of_the_noise_is_that_of_flwr():
    """Andrew et al. 2021, Theorem 1, as in flwr, with the same refusals."""
    _, values = sorted(theirs.compute_adaptive_noise_params(1.0, 100, 5.0))
    assert noise_of_values(1.0, 5.0) in (
        pytest.approx(values),
        *[pytest.approx(v) for v in theirs.compute_adaptive_noise_params(1.0, 100, 5.0)],
    )
    for refuses in (
        lambda: noise_of_values(1.0, 0.5),
        lambda: theirs.compute_adaptive_noise_params(1.0, 10, 0.5),
    ):
        with pytest.raises(ValueError, match="clip"):
            refuses()


def test_the_clip_moves_as_in_andrew_et_al_opposite_to_flwr():
    """Six of eight updates within the clip, quantile 1/2: ours decreases as in the paper."""
    release = release_of(clip_quantile=0.5, clip_count_noise=1e-3)
    updates = [{n: np.full(s.shape, v) for n, s in SPECS.items()} for v in [0.01] * 6 + [1.0] * 2]
    model = {name: np.zeros(spec.shape) for name, spec in SPECS.items()}
    _, state = finished(release, model, State(), updates, 1)
    share_clipped = np.mean(
        [theirs.adaptive_clip_inputs_inplace([u[n].copy() for n in SPECS], 0.7) for u in updates]
    )
    assert share_clipped == 0.25
    paper = 0.7 * np.exp(-0.2 * ((1 - share_clipped) - 0.5))
    assert float(state.slots["privacy"]["clip"]) == pytest.approx(paper, rel=1e-3)
    assert 0.7 * np.exp(-0.2 * (share_clipped - 0.5)) > 0.7 > paper
