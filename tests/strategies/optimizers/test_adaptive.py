"""Server optimizers follow their papers and do not change uncovered coordinates."""

import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedloom.strategies import (
    DELTA,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
    Full,
    Mask,
    Partial,
    Slice,
    State,
    TensorSpec,
    exponent,
    weight_units,
)
from fedloom.strategies.exact.compiled import LEAST
from fedloom.strategies.exact.partial import BLOCK
from fedloom.strategies.state import state_from_arrays, state_to_arrays

ALL = [FedAvg(), FedAvgM(), FedAdagrad(), FedAdam(), FedYogi()]
IDS = [type(strategy).__name__ for strategy in ALL]


def sum_of(model, updates, max_abs=4.0):
    """The partial of `(tensor, coverage, weight, values)` over a model, weights 16 at most."""
    specs = {
        (DELTA, name): TensorSpec(shape=value.shape, dtype=value.dtype)
        for name, value in model.items()
    }
    partial = Partial(specs, exponent(max_abs, 16.0))
    for tensor, coverage, weight, values in updates:
        partial.add_array((DELTA, tensor), coverage, weight_units(weight), np.asarray(values))
    return partial


def trajectory(strategy, deltas, start=1.0):
    """The path of a float64 scalar under these mean deltas."""
    model, points = {"x": np.array(start)}, []
    state = strategy.init(model)
    for delta in deltas:
        partial = sum_of(model, [("x", Full(), 1.0, delta)])
        model, state = strategy.finish(state, model, partial)
        points.append(float(model["x"]))
    assert state.step == len(deltas)
    return points


def test_fedavg_moves_to_the_weighted_mean():
    """Three clients of 1, 2 and 5 examples average as 1 : 2 : 5."""
    model = {"x": np.array([1.0, -2.0])}
    updates = [("x", Full(), w, [w, -w]) for w in (1.0, 2.0, 5.0)]
    new, _ = FedAvg().finish(State(), model, sum_of(model, updates, max_abs=5))
    np.testing.assert_allclose(new["x"], [1 + 30 / 8, -2 - 30 / 8], rtol=1e-15)


def test_weights_count_per_coordinate():
    """Each coordinate is averaged over the weights that cover it."""
    model = {"x": np.zeros(4)}
    updates = [
        ("x", Full(), 1.0, [1, 1, 1, 1]),
        ("x", Slice(((1, 3),)), 3.0, [5, 9]),
        ("x", Mask(np.array([0, 0, 1, 1], bool)), 4.0, [2, 6]),
    ]
    new, _ = FedAvg().finish(State(), model, sum_of(model, updates, max_abs=9))
    np.testing.assert_allclose(new["x"], [1, 16 / 4, (1 + 27 + 8) / 8, 25 / 5], rtol=1e-15)


DELTAS = [0.5, -0.25, 1.0, 0.0, -2.0, 1e-3]


def test_fedavgm_follows_hsu_et_al():
    """M ← β·m + Δ; x ← x + η·m."""
    x, m, expected = 1.0, 0.0, []
    for delta in DELTAS:
        m = 0.9 * m + delta
        x += 0.5 * m
        expected.append(x)
    ours = trajectory(FedAvgM(server_learning_rate=0.5, momentum=0.9), DELTAS)
    assert ours == pytest.approx(expected, rel=1e-14)


def algorithm_2(deltas, follow, *, eta=0.1, beta_1=0.9, tau=1e-2, start=1.0):
    """Algorithm 2 of Reddi et al. on a scalar, line by line."""
    x, m, v, points = start, 0.0, tau**2, []
    for delta in deltas:
        m = beta_1 * m + (1 - beta_1) * delta
        v = follow(v, delta**2)
        x = x + eta * m / (math.sqrt(v) + tau)
        points.append(x)
    return points


@pytest.mark.parametrize(
    ("build", "follow"),
    [
        (FedAdagrad, lambda v, d2: v + d2),
        (FedAdam, lambda v, d2: 0.99 * v + 0.01 * d2),
        (FedYogi, lambda v, d2: v - 0.01 * d2 * ((v > d2) - (v < d2))),
    ],
)
def test_adaptive_optimizers_follow_algorithm_2(build, follow):
    """The scalar trajectory is the paper's, from v = τ² and without bias correction."""
    ours = trajectory(build(server_learning_rate=0.1, beta_1=0.9, tau=1e-2), DELTAS)
    assert ours == pytest.approx(algorithm_2(DELTAS, follow), rel=1e-13)


def test_two_steps_of_fedadam_worked_by_hand():
    """η=1, β1=0, β2=0.75, τ=1: Δ=1 gives v=1, x=1/2; Δ=3 gives v=3, x=1/2+3/(√3+1)."""
    strategy = FedAdam(server_learning_rate=1.0, beta_1=0.0, beta_2=0.75, tau=1.0)
    assert trajectory(strategy, [1.0, 3.0], start=0.0) == pytest.approx(
        [0.5, 0.5 + 3 / (math.sqrt(3) + 1)], rel=1e-14
    )


any_floats = hnp.arrays(np.float32, 6, elements=st.floats(width=32)).map(np.copy)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ALL, ids=IDS)
@given(value=any_floats, bits=hnp.arrays(bool, 6))
def test_uncovered_coordinates_keep_their_bits(strategy, value, bits):
    """Values (NaN, infinities and -0.0 too) and slots, with any momentum."""
    value[bits] = 0.25
    model, state = {"x": value}, strategy.init({"x": value})
    if np.isfinite(value).all() and (np.abs(value) < 1e30).all():
        model, state = strategy.finish(state, model, sum_of(model, [("x", Full(), 1.0, [1.0] * 6)]))
    before = state_to_arrays(state)
    values = np.full(int(bits.sum()), 2.0)
    new, after = strategy.finish(state, model, sum_of(model, [("x", Mask(bits), 3.0, values)]))
    assert new["x"][~bits].tobytes() == model["x"][~bits].tobytes()
    assert (new["x"][bits] != model["x"][bits]).all()
    for name, array in before.items():
        if name != "step":
            assert state_to_arrays(after)[name][~bits].tobytes() == array[~bits].tobytes()


@pytest.mark.parametrize("strategy", ALL, ids=IDS)
def test_a_slot_of_a_coordinate_starts_when_it_is_first_covered(strategy):
    """A coordinate covered late behaves like one covered from the start."""
    model = {"x": np.zeros(2)}
    state = strategy.init(model)
    first, second = Slice(((0, 1),)), Slice(((1, 2),))
    for coverage in (first, second):
        model, state = strategy.finish(state, model, sum_of(model, [("x", coverage, 1.0, [0.5])]))
    assert model["x"][0] == model["x"][1] != 0


def test_uncovered_tensors_are_the_same_arrays():
    """They are not copied, and get no slots."""
    model = {"x": np.zeros(3), "frozen": np.ones(4)}
    new, state = FedAdam().finish(State(), model, sum_of(model, [("x", Full(), 1.0, [1, 2, 3])]))
    assert new["frozen"] is model["frozen"]
    assert {name for slot in state.slots.values() for name in slot} == {"x"}


@pytest.mark.parametrize("strategy", ALL, ids=IDS)
def test_finish_is_pure(strategy):
    """A round finished twice gives the same bits; the inputs do not change."""
    model = {"x": np.linspace(-1, 1, 5, dtype=np.float32)}
    partial = sum_of(model, [("x", Full(), 2.0, [0.1, 0.2, 0.3, 0.4, 0.5])])
    kept, again = model["x"].copy(), partial + sum_of(model, [])
    _, state = strategy.finish(State(), model, partial)
    slots = {name: array.copy() for name, array in state_to_arrays(state).items()}
    one, _ = strategy.finish(state, model, partial)
    two, _ = strategy.finish(state, model, partial)
    assert one["x"].tobytes() == two["x"].tobytes()
    assert partial == again
    np.testing.assert_array_equal(model["x"], kept)
    for name, array in state_to_arrays(state).items():
        np.testing.assert_array_equal(array, slots[name])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_result_is_rounded_once(dtype):
    """To the nearest value of the tensor's dtype."""
    rng = np.random.default_rng(3)
    value, deltas = rng.standard_normal(50).astype(dtype), rng.standard_normal((3, 50))
    deltas = deltas.astype(dtype)
    model = {"x": value}
    updates = [("x", Full(), float(w), d) for w, d in zip((1, 2, 4), deltas, strict=True)]
    new, _ = FedAvg().finish(State(), model, sum_of(model, updates))
    assert new["x"].dtype == dtype
    for at in range(50):
        mean = sum(w * Fraction(float(d[at])) for w, d in zip((1, 2, 4), deltas, strict=True)) / 7
        exact = Fraction(float(value[at])) + mean
        slack = Fraction(float(np.spacing(np.abs(new["x"][at])))) / 2 + Fraction(1, 2**49)
        assert abs(Fraction(float(new["x"][at])) - exact) <= slack


def test_integer_tensors_round_to_whole_steps():
    """A counter changes by the rounded mean, beyond 2^53 too."""
    model = {"count": np.array([10, 2**60 + 1], np.int64), "small": np.array([-3, 100], np.int8)}
    updates = [(n, Full(), 1.0, [v, v]) for n in model for v in (1, 2, 2)]
    new, _ = FedAvg().finish(State(), model, sum_of(model, updates))
    np.testing.assert_array_equal(new["count"], np.array([12, 2**60 + 3], np.int64))
    np.testing.assert_array_equal(new["small"], np.array([-1, 102], np.int8))
    assert new["small"].dtype == np.int8


@pytest.mark.parametrize(
    ("dtype", "value", "delta", "wanted"),
    [
        (np.float16, 65000, 6e4, 65504),
        (np.float16, -65000, -6e4, -65504),
        (np.int8, 127, 6e4, 127),
        (np.int8, -128, -6e4, -128),
        (np.int64, 2**63 - 1, 6e4, 2**63 - 1),
        (np.int64, 2**63 - 5, 3, 2**63 - 2),
        (np.uint64, 2**64 - 1, 6e4, 2**64 - 1),
        (np.uint8, 255, 6e4, 255),
        (np.uint8, 3, -6e4, 0),
    ],
)
def test_a_result_is_clipped_to_its_dtype(dtype, value, delta, wanted):
    """No infinities or wrapped integers."""
    model = {"x": np.array([value], dtype)}
    partial = sum_of(model, [("x", Full(), 1.0, [delta])], max_abs=6e4)
    new, _ = FedAvg().finish(State(), model, partial)
    assert new["x"].dtype == dtype
    assert new["x"][0] == dtype(wanted)


def test_a_covered_tensor_of_another_kind_is_refused():
    """Booleans have no mean."""
    model = {"x": np.array([True])}
    with pytest.raises(TypeError, match="floats or integers"):
        FedAvg().finish(State(), model, sum_of(model, [("x", Full(), 1.0, [1.0])]))


def test_a_partial_of_another_model_is_refused():
    """Deltas for unknown tensors or other shapes."""
    partial = sum_of({"x": np.zeros(3)}, [])
    for model in ({}, {"x": np.zeros(4)}):
        with pytest.raises(ValueError, match="Expected"):
            FedAvg().finish(State(), model, partial)


@pytest.mark.parametrize("strategy", ALL, ids=IDS)
def test_a_state_is_restored_from_its_arrays(strategy):
    """The next round gives the same bits."""
    model = {"x": np.linspace(-1, 1, 5, dtype=np.float32), "a/b": np.array(2.0)}
    updates = [("x", Full(), 2.0, [0.1, 0.2, 0.3, 0.4, 0.5]), ("a/b", Full(), 1.0, 0.5)]
    model, state = strategy.finish(strategy.init(model), model, sum_of(model, updates))
    arrays = state_to_arrays(state)
    rebuilt = state_from_arrays(
        {
            name: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)
            for name, array in arrays.items()
        }
    )
    assert rebuilt.step == 1
    one, after_one = strategy.finish(state, model, sum_of(model, updates))
    two, after_two = strategy.finish(rebuilt, model, sum_of(model, updates))
    for name in model:
        assert one[name].tobytes() == two[name].tobytes()
    assert state_to_arrays(after_one).keys() == state_to_arrays(after_two).keys()


@pytest.mark.parametrize("arrays", [{}, {"step": np.array(1), "momentum": np.zeros(3)}])
def test_arrays_of_an_invalid_state_are_refused(arrays):
    with pytest.raises(ValueError, match="Expected"):
        state_from_arrays(arrays)


@pytest.fixture(scope="module")
def peak_bytes():
    """Return a function that does a work: its result, and the most memory that it allocated.

    What is compiled at its first call is compiled before: a compiler allocates 40 MB.
    """
    model = {"x": np.zeros(LEAST, np.float32)}
    FedAvg().finish(State(), model, sum_of(model, [("x", Full(), 1.0, model["x"])]))

    def measure(work):
        tracemalloc.start()
        try:
            result = work()
            return result, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return measure


BLOCKS = 8 * BLOCK * 16  # sixteen float64 blocks, 8 MiB


@pytest.mark.parametrize(
    "coverage", [Full(), Slice(((0, 2000), (100, 1900))), Mask(np.arange(4_000_000) % 3 == 0)]
)
def test_adding_allocates_no_whole_tensor(peak_bytes, coverage):
    """With accumulators allocated, adding needs a few blocks."""
    model = {"x": np.zeros((2000, 2000), np.float32)}
    values = np.zeros(coverage.count((2000, 2000)), np.float32)
    partial = sum_of(model, [("x", coverage, 1.0, values)])
    _, peak = peak_bytes(
        lambda: partial.add_array((DELTA, "x"), coverage, weight_units(1.0), values)
    )
    assert peak < BLOCKS


@pytest.mark.long
@pytest.mark.parametrize("strategy", ALL, ids=IDS)
def test_finish_needs_the_new_model_its_slots_and_blocks(peak_bytes, strategy):
    """It allocates nothing else of the model's size."""
    model = {"x": np.zeros(4_000_000, np.float32)}
    values = np.zeros(2_000_000, np.float32)
    partial = sum_of(model, [("x", Slice(((0, 2_000_000),)), 1.0, values)])
    (_, state), peak = peak_bytes(lambda: strategy.finish(State(), model, partial))
    assert peak < (1 + len(state.slots)) * model["x"].nbytes + BLOCKS
    assert len(state.slots) == {"FedAvg": 0, "FedAvgM": 1}.get(type(strategy).__name__, 2)


def test_finishing_a_draining_partial_frees_its_sums(peak_bytes):
    """Of two equal tensors, one's sums are freed before the other's new value is allocated."""
    model = {name: np.zeros(1_000_000, np.float32) for name in "abcd"}
    values = model["a"]

    def work():
        partial = sum_of(model, [(name, Full(), 1.0, values) for name in model])
        return FedAvg().finish(State(), model, partial.drain())

    _, peak = peak_bytes(work)
    # The sums are 64 MB, a new tensor is 4; keeping the sums would make it 80.
    assert peak < 64_000_000 + 4_000_000 + BLOCKS
