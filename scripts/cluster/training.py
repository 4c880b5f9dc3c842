"""What a cluster trains: a linear classifier of 8×8 digits, on devices with a part of them each.

The devices run this file: `fedloom client run training.py:client`.
"""

import os
import time
from pathlib import Path

import numpy as np

from fedloom.client.numpy import GradientClient, gradient_client

SHARD = "CLUSTER_SHARD"
"""Name of the environment variable with the file of a device's digits, .npz."""
STEP_S = 0.1
"""Pause in each step, so that rounds take a second, as on devices, and this machine stays idle."""

Params = dict[str, np.ndarray]


def initial() -> Params:
    """The model that the run starts from."""
    return {"weight": np.zeros((64, 10), np.float32), "bias": np.zeros(10, np.float32)}


def run(num_devices: int) -> dict[str, object]:
    """The settings of the run: half an hour or more."""
    return {
        "name": "digits",
        "rounds": 1500,
        "seed": 1,
        "evaluate": True,
        "cohort": {"goal": num_devices, "quorum": num_devices // 2 + 1, "deadline_s": 60.0},
        "train": {"steps": 8, "batch_size": 32, "learning_rate": 0.02},
    }


def write_shards(folder: Path, names: list[str]) -> dict[str, Path]:
    """Deal scikit-learn's digits to devices; their files."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - devices do not need it

    x, y = load_digits(return_X_y=True)
    folder.mkdir()
    paths = {name: folder / f"{name}.npz" for name in names}
    for number, path in enumerate(paths.values()):
        mine = slice(number, None, len(names))
        np.savez(path, x=x[mine].astype(np.float32) / 16, y=y[mine])
    return paths


def gradient(params: Params, x: np.ndarray, y: np.ndarray) -> tuple[float, Params]:
    """Cross-entropy of a batch, and its gradient."""
    time.sleep(STEP_S)
    chances = _chances(params, x)
    loss = -float(np.mean(np.log(chances[np.arange(len(y)), y] + 1e-9)))
    error = chances - np.eye(10, dtype=np.float32)[y]
    return loss, {"weight": x.T @ error / len(y), "bias": error.mean(axis=0)}


def measure(params: Params, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Share of the digits that are recognised."""
    return {"accuracy": float(np.mean(_chances(params, x).argmax(axis=1) == y))}


def _chances(params: Params, x: np.ndarray) -> np.ndarray:
    scores = x @ params["weight"] + params["bias"]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def client() -> GradientClient:
    """The client of the digits that the environment names; a fifth of them are held out."""
    with np.load(os.environ[SHARD], allow_pickle=False) as digits:
        x, y = digits["x"], digits["y"]
    held = len(y) // 5
    return gradient_client(
        gradient, (x[held:], y[held:]), held_out=(x[:held], y[:held]), measure=measure
    )
