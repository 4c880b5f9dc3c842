"""[adapters] of a run: its checks, its limits, and the step of a round by products."""

import numpy as np
import pytest

from fedloom.protocol.errors import Code, Refusal, UsageError
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.task_message import from_message, to_message
from fedloom.protocol.tensors.container import TensorEntry, build_header
from fedloom.protocol.updates.header import check_header
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import RoundKind
from fedloom.server.planning import limits
from fedloom.server.planning.advance import advance, begin
from fedloom.server.planning.round_result import ClientReport, RoundResult
from fedloom.server.planning.run_setup import RunSetup
from fedloom.server.planning.spec import parse
from fedloom.server.planning.task import describe
from support.adapters import OTHER, REST, A, B, mean_product, model_of, specs_of, updates_of

BASE = {"train": {"epochs": 1, "learning_rate": 0.1}, "cohort": {"goal": 2}}


def manifest_of(model):
    """The manifest of a model of float32."""
    _, layout = build_header([TensorEntry(n, "F32", a.shape) for n, a in model.items()])
    return Manifest(
        dtypes=dict.fromkeys(model, "F32"), specs=specs_of(model), size_bytes=layout.size_bytes
    )


def spec_of(**values):
    """A checked specification."""
    return parse({**BASE, **values})


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"strategy": {"name": "fedadam"}}, "a strategy other than fedavg"),
        ({"strategy": {"name": "scaffold", "clients": 4}}, "a strategy other than fedavg"),
        ({"strategy": {"name": "fedavg", "server_learning_rate": 0.5}}, "a strategy other than"),
        ({"aggregation": {"name": "median"}}, "the aggregation median"),
        ({"cohort": {"goal": 2, "mode": "buffered", "concurrency": 4}}, "buffered"),
        ({"compression": {"up": {"name": "int8"}}}, r"compression\.up = int8"),
        ({"compression": {"down": {"name": "int8"}}}, r"compression\.down = int8"),
        ({"train": {**BASE["train"], "tensor_share": 0.5}}, r"train\.tensor_share"),
        ({"sum_bits": 64}, "sum_bits"),
        ({"personal": {"keep": ["x*"]}}, r"\[personal\]"),
        (
            {
                "privacy": {
                    "mechanism": "dp_fedavg",
                    "clip": 1.0,
                    "noise_multiplier": 1.0,
                    "delta": 1e-3,
                }
            },
            r"\[privacy\]",
        ),
    ],
)
def test_products_refuse_what_they_cannot_average(other, said):
    """When the run is submitted; the same run with factors is accepted."""
    with pytest.raises(UsageError, match=said):
        spec_of(adapters={"aggregate": "product"}, **other)
    spec_of(adapters={"aggregate": "factors"}, **other)


def test_the_task_says_what_is_averaged():
    """Through the message and back."""
    spec = spec_of(adapters={"aggregate": "product", "rest": "send", "scale": 2.0})
    task = describe(spec, run="r", number=1, trained=0, kind=RoundKind.TRAIN, clip=0.0)
    assert task.adapters == spec.build_adapters()
    assert from_message(to_message(task)) == task
    plain = describe(spec_of(), run="r", number=1, trained=0, kind=RoundKind.TRAIN, clip=0.0)
    assert not to_message(plain).HasField("adapters")


def header_of(model, ranks):
    """A header that covers tensors up to these ranks; None covers a whole tensor."""
    parts = []
    for name, rank in ranks.items():
        part = fleet_pb2.Part(group="delta", tensor=name, values=f"{len(parts)}")
        if rank is None:
            part.full.SetInParent()
        else:
            stops = [rank if n == (name == B) else s for n, s in enumerate(model[name].shape)]
            part.slice.ranges.extend(fleet_pb2.Range(start=0, stop=stop) for stop in stops)
        parts.append(part)
    return fleet_pb2.UpdateHeader(
        weight=1.0, parts=parts, size_bytes=100, training=fleet_pb2.Metrics(num_examples=1)
    )


def refused(adapters, model, ranks):
    """The code and message of the refusal; None if the header is accepted."""
    manifest = manifest_of(model)
    allowed = limits.limits(spec_of(adapters=adapters), manifest)
    try:
        check_header(header_of(model, ranks), allowed, manifest)
    except Refusal as refusal:
        return refusal.code, str(refusal)
    return None


def test_the_door_refuses_frozen_factors_and_other_ranks():
    """By name, before the body is received."""
    model = model_of(rest=True)
    code, said = refused({"aggregate": "freeze_a"}, model, {A: None, B: None})
    assert code is Code.UNKNOWN_TENSOR
    assert A in said
    assert "adapters.aggregate" in said
    assert refused({"aggregate": "freeze_a"}, model, {B: None}) is None
    code, said = refused({"aggregate": "factors"}, model, {A: 2, B: 2})
    assert code is Code.WRONG_SHAPE
    assert "got 2" in said
    assert "product or stack" in said
    assert refused({"aggregate": "product"}, model, {A: 2, B: 2}) is None
    assert refused({"aggregate": "product"}, model, {A: 2, B: 3})[0] is Code.WRONG_SHAPE
    assert refused({"aggregate": "stack"}, model, {REST: None})[0] is Code.UNKNOWN_TENSOR


def test_without_the_table_any_part_is_averaged():
    """As before there was one."""
    assert refused({}, model_of(), {A: 2, B: None}) is None


def test_freezing_a_leaves_the_mean_of_products_exact():
    """The sum holds B alone; the mean of B A is B's mean times A."""
    model = model_of()
    manifest, spec = manifest_of(model), spec_of(adapters={"aggregate": "freeze_a"})
    assert {name for _, name in limits.sums(spec, manifest)} == {B, OTHER}
    with pytest.raises(UsageError, match="Expected adapters"):
        limits.sums(spec, manifest_of({OTHER: model[OTHER]}))


@pytest.mark.parametrize("ranks", [(6, 6, 6), (6, 1, 3)])
def test_a_round_by_products(ranks):
    """`advance` ends with the mean of the functions, and notes nothing."""
    model, weights = model_of(rest=True), (1.0, 5.0, 2.0)
    spec = spec_of(adapters={"aggregate": "product", "rest": "send"})
    setup = RunSetup.of(spec, manifest_of(model), None)
    updates, factors = updates_of(model, ranks, weights)
    result = RoundResult(
        number=1,
        kind=RoundKind.TRAIN,
        reports=[ClientReport(client=name, asked_in=1) for name in updates.clients],
        total=limits.empty_sum(spec, setup.manifest),
        updates=updates,
    )
    after = advance(setup, begin(setup, model), result)
    new = after.state.model
    function = new[B].astype(np.float64) @ new[A] + new[REST]
    expected = mean_product(factors, weights) + model[REST]
    np.testing.assert_allclose(function, expected, atol=2e-7 * np.abs(expected).max())
    assert not after.note


def test_the_door_refuses_what_train_only_leaves_out():
    """It would fail the fold of the whole round."""
    model = model_of()
    manifest = manifest_of(model)
    spec = spec_of(train={**BASE["train"], "only": ["*lora_B*"]})
    allowed = limits.limits(spec, manifest)
    check_header(header_of(model, {B: None}), allowed, manifest)
    with pytest.raises(Refusal, match=r"does not train \(train\.only"):
        check_header(header_of(model, {B: None, OTHER: None}), allowed, manifest)
