"""The costs of an experiment's first round, before it is trained, for `--describe`."""

from typing import Any

import numpy as np

from fedloom.protocol.manifest import Manifest
from fedloom.server.engine import RoundKind
from fedloom.server.planning.advance import begin, clip
from fedloom.server.planning.run_setup import RunSetup
from fedloom.server.planning.task import describe
from fedloom.simulation.clock.round_clock import Clock
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.output import words
from fedloom.simulation.training.round_trainer import stream_of
from fedloom.simulation.training.traffic import Downloaded, Files, Traffic, bytes_beside
from fedloom.strategies import Params
from fedloom.strategies.selection import History
from fedloom.strategies.state import slots_to_arrays


def forecast(experiment: Experiment, manifest: Manifest, params: Params) -> dict[str, str]:
    """Bytes and passes of a client's first task, and the virtual time of the first round.

    Args:
        experiment: to describe.
        manifest: of the model.
        params: the initial model.
    """
    spec = experiment.spec
    stream = stream_of(spec)
    setup = RunSetup.of(spec, manifest, stream)
    state = begin(setup, params)
    beside = slots_to_arrays(setup.strategy.sends(state.strategy))
    files = Files(model_bytes=manifest.size_bytes, beside_bytes=bytes_beside(beside))
    norm = clip(setup, state.strategy) or 0.0
    task = files.of(
        describe(spec, run=spec.name, number=1, trained=0, kind=RoundKind.TRAIN, clip=norm)
    )
    traffic = Traffic(experiment, manifest)
    has = Downloaded.nothing(len(experiment.population))
    work, upload = traffic.work(task), traffic.upload_bytes(task)
    up = np.array([upload(place) for place in range(len(experiment.population))])
    codec = None if task.scheme is None else task.scheme.codec
    most = "at most " if codec is not None and codec.varies else ""
    if experiment.client is not None:
        most = "of all tensors, as the clients' code decides: "
    found = {
        "bytes down": f"{_span(has.bytes_of(task, files))} for a client's first task",
        "bytes up": f"{most}{_span(up)} for each update",
        "passes": f"{_counts(work.trained)} examples forward and backward for a task, "
        f"{_counts(work.evaluated)} forward alone",
    }
    if experiment.devices is not None and spec.buffer_config() is None:
        play = Clock(experiment.population.names, experiment.devices).play(
            spec.round_config(),
            select=spec.select(1, RoundKind.TRAIN, History(), stream),
            round_number=1,
            load=traffic.load(task, files, has),
        )
        ended = play.reason or words.duration(play.end_s)
        found["virtual time"] = f"{ended} for the first round"
    return found


def _span(values: np.ndarray[Any, Any]) -> str:
    low, high = words.size(values.min()), words.size(values.max())
    return low if low == high else f"{low} to {high}"


def _counts(values: np.ndarray[Any, Any]) -> str:
    low, high = words.count(int(values.min())), words.count(int(values.max()))
    return low if low == high else f"{low} to {high}"
