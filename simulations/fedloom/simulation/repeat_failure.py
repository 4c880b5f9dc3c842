"""Repeat the training of a client that failed, alone and in this process."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.client.api import Weighting
from fedloom.client.training.client_rule import RuleContext
from fedloom.protocol.errors import UsageError
from fedloom.protocol.tensors.container import read_params
from fedloom.server.engine import RoundKind
from fedloom.server.planning.task import describe
from fedloom.simulation.caller_state import preserved
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.kernels.base import ClientJob, RoundTask
from fedloom.simulation.workers.setup import checked_device, make_kernel
from fedloom.strategies.state import slots_from_arrays


@preserved()
def replay(path: Path | str, experiment: Experiment) -> None:
    """Repeat the training of a client that failed, with what it got.

        replay("debug/round-3-client-7.safetensors", experiment)  # under a debugger

    Its own exception reaches the caller as it was raised. Nothing is raised if the training
    succeeds now, such as after a correction.

    Args:
        path: a file that a simulation with `engine.debug` wrote.
        experiment: the one that was simulated, with the same data and settings.

    Raises:
        UsageError: the file is missing or of another experiment, or the update has values that are
            not finite.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"Expected a file that engine.debug wrote, got {path}: no such file.")
    arrays = {name: np.array(array) for name, array in read_params(path).items()}
    if "note" not in arrays:
        raise UsageError(f"Expected a file that engine.debug wrote, got {path}.")
    note = json.loads(arrays.pop("note").tobytes())
    client = _client(note, arrays, experiment, path)
    context = RuleContext(
        received=slots_from_arrays(_under("received/", arrays)),
        memory=slots_from_arrays(_under("memory/", arrays)),
        personal=experiment.spec.build_personal(),
        adapters=experiment.spec.build_adapters(),
    )
    task = _task(note, experiment, context, path)
    job = ClientJob(client, note["seed"], most_steps=note["most_steps"])
    torch.set_num_threads(1)  # as in a worker, for the same bits
    kernel = make_kernel(experiment, note["kernel"], checked_device(experiment))
    for outcome in kernel.work(_under("model/", arrays), task, [job]):
        for part in outcome.parts:
            if not np.isfinite(part.values).all():
                raise UsageError(f"Expected finite values in {part.tensor!r}, got NaN or infinity.")


def _client(
    note: dict[str, Any], arrays: dict[str, NDArray[Any]], experiment: Experiment, path: Path
) -> int:
    """The client's index, if the experiment has its data."""
    names, examples = list(experiment.population.names), experiment.population.examples
    client = names.index(note["client"]) if note["client"] in names else None
    same = client is not None and np.array_equal(
        experiment.population.shards[client], note["examples"]
    )
    if same and "x" in arrays:
        shard = note["examples"]
        same = all(
            np.array_equal(arrays[name], found[shard], equal_nan=found.dtype.kind == "f")
            for name, found in (("x", examples.x), ("y", examples.y))
        )
    if client is None or not same:
        raise UsageError(
            f"{path} is of {note['client']!r} with other data than the experiment's. Give the "
            "experiment that was simulated."
        )
    return client


def _task(
    note: dict[str, Any], experiment: Experiment, context: RuleContext, path: Path
) -> RoundTask:
    spec, kind = experiment.spec, RoundKind.TRAIN if note["train"] else RoundKind.EVALUATE
    trained = note["training_round"] - note["train"]
    asked = describe(
        spec, run=spec.name, number=note["round"], trained=trained, kind=kind, clip=0.0
    )
    if json.loads(json.dumps(asdict(asked.settings))) != note["settings"]:
        raise UsageError(
            f"{path} was written with other settings of [train] than the experiment's. Give the "
            "experiment that was simulated."
        )
    return RoundTask(
        run=asked.run,
        round=asked.round,
        training_round=asked.training_round,
        settings=asked.settings,
        rule=asked.rule,
        config=asked.config,
        weighting=Weighting(asked.weighting),
        evaluate=asked.evaluates,
        train=asked.train,
        own_code=experiment.client is not None,
        personal=asked.personal,
        adapters=asked.adapters,
        local=lambda _: context,
    )


def _under(prefix: str, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
