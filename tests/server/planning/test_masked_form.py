"""Bodies of masked updates and their sums: those of the sums that the updates give in clear."""

import numpy as np
import pytest

from fedloom.protocol.errors import Refusal
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.masking import BodyLayout, add_body, width_class, write_body
from fedloom.protocol.updates.masked_parts import to_parts
from fedloom.server.engine import RoundKind
from fedloom.server.planning import limits
from fedloom.server.planning.masked_form import MaskedForm
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.planning.spec import parse
from fedloom.strategies import Full, Slice, TensorSpec, weight_units
from fedloom.strategies.exact.partial import DELTA

SHAPES = {"b": (3,), "a": (2, 5), "c": ()}
RUN = {
    "max_abs": 1.0,
    "weighting": "uniform",
    "cohort": {"goal": 4, "quorum": 3},
    "train": {"epochs": 1, "learning_rate": 0.1},
}
CASES = {
    "mean": {"masking": {"group": 4, "min_group": 3, "precision": 1e-3}},
    "scaffold": {
        "strategy": {"name": "scaffold", "clients": 10},
        "masking": {"group": 4, "min_group": 3, "precision": 1e-3, "sum_bits": 24},
    },
    "fednova": {
        "strategy": {"name": "fednova"},
        "weighting": "examples",
        "max_weight": 64.0,
        "masking": {"group": 4, "min_group": 3, "precision": 1e-3, "sum_bits": 64},
    },
}


def plan(case, kind=RoundKind.TRAIN):
    spec = parse(RUN | CASES[case])
    specs = {n: TensorSpec(shape=s, dtype=np.dtype(np.float32)) for n, s in SHAPES.items()}
    manifest = Manifest(dtypes=dict.fromkeys(SHAPES, "F32"), specs=specs, size_bytes=0)
    return RoundPlan(
        run="r", number=1, kind=kind, trained=0, spec=spec, model="m", strategy_state=None,
        manifest=manifest, limits=limits.limits(spec, manifest),
    )  # fmt: skip


def added(form, case, seed):
    """The sum of three updates in clear, and the body of the sum of theirs."""
    draw, of_all = np.random.default_rng(seed), form.empty.empty()
    body = np.zeros(form.layout.size_bytes, np.uint8)
    for member in range(3):
        weight = member + 2.0 if form.words.weighted else 1.0
        own = form.empty.empty()
        for key, spec in form.specs.items():
            values = draw.uniform(-0.3, 0.3, spec.shape).astype(np.float32)
            own.add_array(key, Full(), weight_units(weight), values)
        own.count = 1
        of_all.merge(own)
        words = form.words.of(weight, {"training": (member + 2, {"loss": -0.5})})
        values = [own.sum_block(key, 0, spec.size) for key, spec in form.specs.items()]
        add_body(body, form.layout, write_body(form.layout, values, list(words.values())))
    return of_all, body


@pytest.mark.parametrize("case", CASES)
def test_the_sum_of_bodies_is_the_sum_of_the_updates(case):
    """Values, weights and numbers of updates, of every group; nothing is implausible."""
    form = MaskedForm.of(plan(case))
    wanted, body = added(form, case, 3)
    got = form.total(body, 3)
    arrays, header = got.arrays()
    expected, described = wanted.arrays()
    assert header["entries"] == described["entries"]
    assert header["count"] == described["count"] == "3"
    assert arrays.keys() == expected.keys()
    assert all(np.array_equal(arrays[name], expected[name]) for name in arrays)
    words = form.word_sums(body)
    assert words["training.examples"] == 9
    assert form.implausible_words(words, 3, 3) == form.implausible(got, words, 3) == ""
    assert {group for group, _ in form.specs} > {DELTA} or case == "mean"


SLICES = {("delta", "a"): Slice(((1, 2), (0, 3))), ("delta", "b"): Slice(((0, 2),))}


def test_the_sum_of_narrow_bodies_is_that_of_the_slices():
    """Weights are those of the members where they cover, and none elsewhere."""
    whole = MaskedForm.of(plan("mean"))
    form = whole.covering(to_parts(SLICES), width_class(0.5, SLICES))
    draw, wanted = np.random.default_rng(1), whole.empty.empty()
    body = np.zeros(form.layout.size_bytes, np.uint8)
    assert form.layout.num_values == 3 + 2 + 1
    for _ in range(3):
        values = []
        for key, spec in form.specs.items():
            found = draw.uniform(-0.3, 0.3, spec.shape).astype(np.float32)
            wanted.add_array(key, SLICES.get(key, Full()), weight_units(1.0), found)
            values.append(np.rint(found.astype(float) * 2**form.grid.exponent).astype(np.int64))
        words = form.words.of(1.0, {"training": (2, {"loss": -0.5})})
        add_body(body, form.layout, write_body(form.layout, values, list(words.values())))
        wanted.count += 1
    got, words = form.total(body, 3), form.word_sums(body)
    assert [*got.arrays()[0]] == [*wanted.arrays()[0]]
    for key, spec in wanted.specs.items():
        for mine, its in zip(
            got.mean_block(key, 0, spec.size), wanted.mean_block(key, 0, spec.size), strict=True
        ):
            assert np.array_equal(mine, its)
    assert form.implausible_words(words, 3, 3) == form.implausible(got, words, 3) == ""


@pytest.mark.parametrize(
    ("parts", "coverage", "words"),
    [
        (SLICES, "", "of whole models"),
        ({}, width_class(0.5, SLICES), "got 0 others"),
        (SLICES, width_class(0.25, SLICES), ""),
        (SLICES, width_class(0.5, {}), "got 2 others"),
        (OUTSIDE := {("delta", "b"): Slice(((0, 4),))}, width_class(0.5, OUTSIDE), "within shape"),
        (OTHER := {("delta", "x"): Slice(((0, 4),))}, width_class(0.5, OTHER), "got one of 'x'"),
        (EMPTY := {("delta", "b"): Slice(((1, 1),))}, width_class(0.5, EMPTY), "with values"),
        (FLAT := {("delta", "a"): Slice(((1, 1),))}, width_class(0.5, FLAT), "within shape"),
    ],
)
def test_slices_that_are_not_those_of_a_class_or_a_model_are_refused(parts, coverage, words):
    """Whoever chose the class has signed it; its slices may still be of no model."""
    form = MaskedForm.of(plan("mean"))
    if not words:
        assert form.covering(to_parts(parts), coverage).slices == SLICES
        return
    with pytest.raises(Refusal, match=words):
        form.covering(to_parts(parts), coverage)


def test_the_order_of_a_body_is_that_of_the_keys():
    """By group, then by name, whatever the model's order."""
    form = MaskedForm.of(plan("scaffold"))
    assert list(form.specs) == sorted(form.specs)
    assert form.layout == BodyLayout(
        sum_bits=24, num_values=2 * 14, num_words=len(form.words.names)
    )


def test_an_evaluation_has_words_alone():
    form = MaskedForm.of(plan("mean", RoundKind.EVALUATE))
    assert form.layout.num_values == 0
    body = write_body(form.layout, [], list(form.words.of(0.0, {"evaluation": (4, {})}).values()))
    words = form.word_sums(body)
    assert words["evaluation.examples"] == 4
    assert form.implausible_words(words, 1, 3) == ""
    assert form.implausible(form.total(body, 1), words, 3) == ""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"training.examples": -1}, "-1 examples of training, not 0 to"),
        ({"training.loss.examples": 1 << 40}, "examples of training.loss, not 0 to"),
        ({"training.loss": 1 << 50}, "units of training.loss, more than"),
    ],
)
def test_words_that_no_members_sent_are_implausible(change, reason):
    """What a mask that was not taken off leaves."""
    form = MaskedForm.of(plan("mean"))
    _, body = added(form, "mean", 5)
    assert reason in form.implausible_words(form.word_sums(body) | change, 3, 3)


@pytest.mark.parametrize("weight", [0, -1, 1 << 62, 3 * 64 * 2**20 + 1])
def test_a_sum_of_weights_that_no_members_have_is_implausible(weight):
    """It is found before the sum is computed, which has no such weights."""
    form = MaskedForm.of(plan("fednova"))
    _, body = added(form, "fednova", 5)
    words = form.word_sums(body)
    assert form.implausible_words(words, 3, 3) == ""
    assert "weights that sum to" in form.implausible_words(words | {"weight": weight}, 3, 3)


def test_a_value_beyond_the_limits_is_implausible():
    form = MaskedForm.of(plan("mean"))
    _, body = added(form, "mean", 5)
    body[3] ^= 0x40
    assert "a sum of" in form.implausible(form.total(body, 3), form.word_sums(body), 3)
