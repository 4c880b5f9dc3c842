"""Files with the inputs of clients whose training failed, for `fedloom.simulation.replay`.

A file is a safetensors container: `model/NAME`, `received/SLOT/NAME` and `memory/SLOT/NAME` as the
client got them, its examples as `x` and `y` if they are small, and `note`, UTF-8 text in JSON.
"""

import json
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.tensors.container import write_file
from fedloom.simulation.data.population import Population
from fedloom.simulation.kernels.base import ClientJob, Params, RoundTask
from fedloom.simulation.output import environment
from fedloom.strategies.state import slots_to_arrays

MOST_FILES = 16
"""Files that one worker writes: a run of which all clients diverge must not fill the disk."""
MOST_BYTES = 64 << 20
"""Of a client's examples; larger ones stay in the data."""


class FailureCases:
    """Writes such files into a folder, which is made with the first one."""

    def __init__(self, folder: Path, population: Population, kernel: str) -> None:
        self._folder = folder
        self._population = population
        self._kernel = kernel
        self._written = 0

    def save(self, error: Exception, params: Params, task: RoundTask, job: ClientJob) -> str:
        """Write the inputs of a client's training; returns a note for the error's message.

        Args:
            error: that the training raised, or the refusal of its update.
            params: the round's model.
            task: whose `local` gives what the client receives besides and remembers.
            job: of the client.
        """
        if self._written >= MOST_FILES:
            return ""
        self._written += 1
        name = self._population.names[job.client]
        local = task.local(job)
        arrays = _under("model", params)
        arrays |= _under("received", slots_to_arrays(local.received))
        arrays |= _under("memory", slots_to_arrays(local.memory))
        shard = self._population.shards[job.client]
        x, y = self._population.examples.x, self._population.examples.y
        if len(shard) * (x[:1].nbytes + y[:1].nbytes) <= MOST_BYTES:
            arrays |= {"x": np.asarray(x[shard]), "y": np.asarray(y[shard])}
        note = {
            "client": name,
            "round": task.round,
            "training_round": task.training_round,
            "train": task.train,
            "settings": asdict(task.settings),
            "seed": job.seed,
            "most_steps": job.most_steps,
            "kernel": self._kernel,
            "examples": np.asarray(shard).tolist(),
            "error": f"{type(error).__name__}: {error}",
            "traceback": "".join(traceback.format_exception(error)),
            "environment": environment.describe(),
        }
        text = json.dumps(note, default=str).encode()
        arrays["note"] = np.frombuffer(text, np.uint8)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"round-{task.round}-client-{job.client}.safetensors"
        write_file(path, arrays)
        return f" (its inputs are in {path}, for fedloom.simulation.replay)"


def _under(prefix: str, arrays: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    return {f"{prefix}/{name}": np.asarray(array) for name, array in arrays.items()}
