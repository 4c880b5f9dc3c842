"""The state of an optimizer between the rounds of a run, in files.

Invariant: a task continues from the state of an earlier round, never from its own: repeating it
gives the same result.
"""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from fedloom.protocol.trust.private_files import private_directory, private_opener


class KeptOptimizer:
    """Stores an optimizer's state after each round, and keeps the last two of a run.

    Args:
        folder: created if needed, mode 0700; for one client.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, run: str, number: int, optimizer: Optimizer) -> None:
        """Continue from the newest state of an earlier round, if there is one.

        The settings, such as the learning rate, stay those of the round. A state of other
        parameters is not used.
        """
        earlier = {n: path for n, path in self._files(run).items() if n < number}
        if not earlier:
            return
        state = torch.load(earlier[max(earlier)], weights_only=True)
        if state["shapes"] != _shapes(optimizer):
            return
        now = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state["optimizer"], "param_groups": now})

    def save(self, run: str, number: int, optimizer: Any) -> None:
        """Store the state after a round."""
        private_directory(self._folder)
        path = self._folder / f"{_name(run)}.{number}.pt"
        temporary = path.with_suffix(".tmp")
        inner: Optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        with open(temporary, "wb", opener=private_opener) as file:
            torch.save({"optimizer": inner.state_dict()["state"], "shapes": _shapes(inner)}, file)
        temporary.replace(path)
        files = self._files(run)
        for old in sorted(files)[:-2]:
            files[old].unlink()

    def _files(self, run: str) -> dict[int, Path]:
        return {int(p.name.split(".")[1]): p for p in self._folder.glob(f"{_name(run)}.*.pt")}


def _name(run: str) -> str:
    return hashlib.sha256(run.encode()).hexdigest()[:16]


def _shapes(optimizer: Optimizer) -> list[list[list[int]]]:
    return [[list(p.shape) for p in group["params"]] for group in optimizer.param_groups]
