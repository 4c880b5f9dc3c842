"""Runs with a model of one tensor, and rounds with given updates."""

import numpy as np

from fedloom.protocol.manifest import Manifest
from fedloom.protocol.tensors.container import TensorEntry, build_header
from fedloom.protocol.trust.noise_stream import key_of_seed, keyed
from fedloom.server.engine import RoundKind
from fedloom.server.planning import limits
from fedloom.server.planning.advance import begin
from fedloom.server.planning.round_result import (
    ClientMetrics,
    ClientReport,
    ReportedMetrics,
    RoundResult,
)
from fedloom.server.planning.run_setup import RunSetup
from fedloom.server.planning.spec import parse
from fedloom.strategies import Full, weight_units
from fedloom.strategies.exact.partial import SCALAR, TensorSpec

TRAIN = {"epochs": 1, "learning_rate": 0.1}
PRIVATE = {"mechanism": "dp_fedavg", "clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-3}


def setup_of(*, dtype="F32", size=4, **values):
    """A run over a model of the tensor `w`."""
    spec = parse({"train": TRAIN, "rounds": 4, "cohort": {"goal": 2}, **values})
    specs = {"w": TensorSpec(shape=(size,), dtype=np.dtype(np.float32))}
    _, layout = build_header([TensorEntry("w", dtype, (size,))])
    manifest = Manifest(dtypes={"w": dtype}, specs=specs, size_bytes=layout.size_bytes)
    stream = keyed(key_of_seed(0)) if spec.privacy else None
    return RunSetup.of(spec, manifest, stream)


def start(setup, value=0.0):
    """The state before the first round, with a model of one value."""
    size = setup.manifest.specs["w"].size
    return begin(setup, {"w": np.full(size, value, np.float32)})


def result_of(setup, deltas, *, number=1, kind=RoundKind.TRAIN, weights=None):
    """A round in which client `a`, `b`, … sends these deltas; None is an update without tensors."""
    total = limits.empty_sum(setup.spec, setup.manifest)
    reports, metrics = [], []
    for place, delta in enumerate(deltas):
        client = "abcdef"[place]
        weight = 1.0 if weights is None else weights[place]
        if delta is not None:
            add(total, delta, weight_units(weight))
        reports.append(ClientReport(client=client, asked_in=number, has_tensors=delta is not None))
        measured = ClientMetrics(num_examples=int(10 * weight), values={"loss": float(place)})
        metrics.append(ReportedMetrics(client=client, training=measured))
    return RoundResult(number=number, kind=kind, reports=reports, total=total, metrics=metrics)


def add(total, delta, units):
    """Add an update: the delta in every group, and 0.5 for every scalar."""
    for key, spec in total.specs.items():
        if key[0] == SCALAR:
            total.add_array(key, Full(), units, np.array(0.5))
        else:
            values = np.broadcast_to(np.asarray(delta, np.float32), spec.shape).reshape(-1)
            total.add_array(key, Full(), units, values)
    total.count += 1
