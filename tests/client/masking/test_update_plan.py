"""The body of a masked update, against a simulation's sum and a server's limits."""

from dataclasses import replace

import numpy as np
import pytest

from fedloom.client.masking.update_plan import UnfitUpdateError, fitted, integers, plan_of
from fedloom.protocol import masking
from fedloom.protocol.errors import UsageError
from fedloom.protocol.manifest import read_manifest
from fedloom.protocol.task_description import FileRef, TaskDescription, TaskMasking, UpdateBounds
from fedloom.protocol.tensors.container import read_params, write_file
from fedloom.protocol.updates.addends import add_update, rounding_draws
from fedloom.protocol.updates.message import TensorPart, write_body
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import Full, Partial, Slice, weight_units
from fedloom.strategies.client_rules import Plain
from fedloom.strategies.local_training import RoundSettings

MODEL = {
    "z": np.zeros((3, 2), np.float32),
    "a.b": np.zeros(5, np.float32),
    "a": np.zeros((), np.float64),
}
RNG = np.random.default_rng(4)


def asked(sum_bits=32, exponent=10, **fields):
    told = TaskMasking(
        sum_bits=sum_bits,
        exponent=exponent,
        group=8,
        run_seed=5,
        metrics={"loss": 100.0},
        max_examples=1000,
        session_s=60.0,
    )
    values = {
        "run": "r",
        "round": 2,
        "model": FileRef(digest="0" * 64),
        "settings": RoundSettings(epochs=1, steps=None, batch_size=1, learning_rate=0.1),
        "rule": Plain(),
        "bounds": UpdateBounds(max_abs=4.0, max_weight=50.0, max_bytes=10_000, max_norm=9.0),
        "deadline_s": 60.0,
        "seed": 77,
        "masking": told,
    }
    return TaskDescription(**(values | fields))


@pytest.fixture
def manifest(tmp_path):
    write_file(tmp_path / "model", MODEL)
    return read_manifest(tmp_path / "model")


def update(tmp_path, manifest, values, weight=3.0, slices=None):
    """An update on the disk, as training writes it."""
    slices = {name: Slice(box) for name, box in (slices or {}).items()}
    parts = [
        TensorPart("delta", name, slices.get(name, Full()), each) for name, each in values.items()
    ]
    body = tmp_path / "body"
    described, size, crc = write_body(body, parts, manifest)
    header = fleet_pb2.UpdateHeader(weight=weight, size_bytes=size, crc32c=crc, parts=described)
    header.training.num_examples = int(weight)
    header.training.values["loss"] = 0.5
    return header, body


def trained():
    return {n: RNG.normal(0, 0.5, v.shape).astype(v.dtype) for n, v in MODEL.items()}


@pytest.mark.parametrize(("sum_bits", "exponent"), [(16, 4), (24, 10), (32, 18), (64, 40)])
def test_a_body_has_the_addends_of_the_round_s_sum(tmp_path, manifest, sum_bits, exponent):
    """In the order of names, rounded by the task's seed below 32 bits."""
    values = trained()
    header, body = update(tmp_path, manifest, values)
    plan = plan_of(asked(sum_bits, exponent), manifest)
    fitted(plan, header, body)
    found = integers(plan, header, body, 5)
    got = masking.read_values(plan.layout, found, 0, plan.layout.num_values)
    start = 0
    for name in sorted(MODEL):
        key = "delta", name
        whole = Partial({key: manifest.specs[name]}, exponent, narrow=True)
        draws = rounding_draws(sum_bits, 77, key)
        whole.add_array(key, Full(), weight_units(3.0), values[name], draws=draws)
        size = MODEL[name].size
        assert got[start : start + size].tolist() == whole.sum_block(key, 0, size).tolist()
        exact = values[name].astype(np.longdouble).reshape(-1) * 3 * 2**exponent
        assert np.all(np.abs(got[start : start + size] - exact) <= (1 if sum_bits < 32 else 0.5))
        start += size
    words = dict(zip(plan.words.names, masking.read_words(plan.layout, found), strict=True))
    assert words["weight"] == 3 * 2**20
    assert words["training.loss"] == 3 * 2**19


def test_a_body_is_the_narrow_sum_of_the_same_file(tmp_path, manifest):
    """That servers add without masks, where nothing is drawn."""
    header, body = update(tmp_path, manifest, trained())
    plan = plan_of(asked(64, 30), manifest)
    whole = Partial(plan.specs, 30, narrow=True)
    add_update(whole, body, header)
    found = integers(plan, header, body, 5)
    got = masking.read_values(plan.layout, found, 0, plan.layout.num_values).tolist()
    assert got == [
        each
        for key in sorted(plan.specs)
        for each in whole.sum_block(key, 0, plan.specs[key].size).tolist()
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v | {"z": v["z"] + 100}, "magnitude_too_large"),
        (lambda v: v | {"z": v["z"] * np.nan}, "not_finite"),
        (lambda v: {n: each * 0 + 3.9 for n, each in v.items()}, "norm_too_large"),
        (lambda v: {n: each for n, each in v.items() if n != "a"}, "'a'"),
    ],
)
def test_an_unfit_update_is_found_on_the_device(tmp_path, manifest, change, words):
    """By the checks of a server's admission."""
    values = {n: np.asarray(each, MODEL[n].dtype) for n, each in change(trained()).items()}
    header, body = update(tmp_path, manifest, values)
    with pytest.raises(UnfitUpdateError, match=words):
        fitted(plan_of(asked(), manifest), header, body)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: setattr(h, "weight", 51.0), "weight_out_of_range"),
        (lambda h: setattr(h, "weight", 0.0), "weight_out_of_range"),
        (lambda h: setattr(h, "crc32c", 1), "bad_checksum"),
        (lambda h: h.scalars.update({"x": 1.0}), "malformed"),
        (lambda h: h.training.values.update({"loss": float("inf")}), "not_finite"),
    ],
)
def test_an_unfit_header_is_found_on_the_device(tmp_path, manifest, change, words):
    """Weights, checksums, numbers and metrics."""
    header, body = update(tmp_path, manifest, trained())
    change(header)
    with pytest.raises(UnfitUpdateError, match=words):
        fitted(plan_of(asked(weighting="client"), manifest), header, body)


BOX = {"z": ((1, 3), (0, 1)), "a.b": ((0, 3),)}
"""What a narrow client has of `MODEL`; it has all of `a`."""


def narrow(values):
    boxes = {n: tuple(slice(*edges) for edges in box) for n, box in BOX.items()}
    return {n: each[boxes.get(n, ...)] for n, each in values.items()}


@pytest.mark.parametrize(("sum_bits", "exponent"), [(16, 4), (32, 18)])
def test_a_narrow_body_has_the_addends_of_what_it_covers(tmp_path, manifest, sum_bits, exponent):
    """Those of an unmasked sum of the same slices, which are where the class says."""
    header, body = update(tmp_path, manifest, narrow(trained()), slices=BOX)
    plan = fitted(plan_of(asked(sum_bits, exponent), manifest, 0.5), header, body)
    assert plan.layout.num_values == 2 + 3 + 1
    slices = {("delta", name): Slice(box) for name, box in BOX.items()}
    assert plan.coverage == masking.width_class(0.5, slices)
    whole = Partial({("delta", n): s for n, s in manifest.specs.items()}, exponent, narrow=True)
    reader = read_params(body)
    for number, name in enumerate(header.parts):
        key = "delta", name.tensor
        whole.add_array(
            key, slices.get(key, Full()), weight_units(3.0), reader[header.parts[number].values],
            draws=rounding_draws(sum_bits, 77, key),
        )  # fmt: skip
    wanted = []
    for name in sorted(MODEL):
        size, shape = MODEL[name].size, MODEL[name].shape
        sums = whole.sum_block(("delta", name), 0, size).reshape(shape)
        wanted += narrow({name: sums})[name].reshape(-1).tolist()
    found = integers(plan, header, body, 5)
    assert masking.read_values(plan.layout, found, 0, plan.layout.num_values).tolist() == wanted


@pytest.mark.parametrize("width", [None, 1.0])
def test_a_slice_of_a_whole_width_is_unfit(tmp_path, manifest, width):
    """Its session would count it in values that it does not have."""
    header, body = update(tmp_path, manifest, narrow(trained()), slices=BOX)
    with pytest.raises(UnfitUpdateError, match="whole values of each of the 3 tensors"):
        fitted(plan_of(asked(), manifest, width), header, body)


@pytest.mark.parametrize("missing", MODEL)
def test_a_narrow_update_has_something_of_each_tensor(tmp_path, manifest, missing):
    """What it leaves out depends on its data."""
    values = {n: each for n, each in narrow(trained()).items() if n != missing}
    header, body = update(tmp_path, manifest, values, slices=BOX)
    with pytest.raises(UnfitUpdateError, match=f"differ in {missing!r}"):
        fitted(plan_of(asked(), manifest, 0.5), header, body)


def test_an_empty_slice_is_unfit(tmp_path, manifest):
    """It is no part of a model of any width."""
    values = narrow(trained()) | {"a.b": np.zeros(0, np.float32)}
    header, body = update(tmp_path, manifest, values, slices=BOX | {"a.b": ((2, 2),)})
    with pytest.raises(UnfitUpdateError, match=r"a\.b: Expected a slice with values"):
        fitted(plan_of(asked(), manifest, 0.5), header, body)


def test_a_task_in_clear_has_no_plan(manifest):
    """It is a mistake of the caller."""
    with pytest.raises(UsageError):
        plan_of(replace(asked(), masking=None), manifest)


def test_an_addend_that_does_not_fit_is_refused(tmp_path, manifest):
    """Never wrapped: the run's exponent is wrong."""
    header, body = update(tmp_path, manifest, trained())
    plan = plan_of(asked(16, 20), manifest)
    with pytest.raises(ValueError, match="integers of 16 bits"):
        integers(plan, header, body, 5)
