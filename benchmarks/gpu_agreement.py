"""The ways to train of gpu.py, and whether the models that they leave agree.

A kernel and precision must give the same bits for any number of workers. In float32, kernels must
agree within TOLERANCE of a tensor's largest value; how far another precision is from it is shown.
"""

from dataclasses import dataclass

import numpy as np

TOLERANCE = 1e-3
"""Of the largest value, between kernels: rounding, and a ReLU that switches by it."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to train: kernel, precision and number of workers."""

    kernel: str
    precision: str
    workers: int

    @property
    def name(self):
        """In tables."""
        return f"fedloom {self.kernel}, {self.precision}, {self.workers}"


def ways(task, device, *, quick):
    """The ways that are worth a task's time; TF32 needs a GPU."""
    kernels = ["resident", "channels-last"] if task.startswith("CNN") else ["resident"]
    if not task.startswith("ResNet"):
        kernels += ["batched"] if quick else ["batched", "compiled"]
    precisions = ["float32", "bf16"] if device == "cpu" else ["float32", "tf32", "bf16"]
    for kernel in kernels:
        for precision in precisions:
            if precision == "bf16" and kernel not in ("resident", "batched"):
                continue
            for workers in [1, 2] if quick or precision != "float32" else [1, 2, 4]:
                yield Way(kernel=kernel, precision=precision, workers=workers)


def saved(folder, way):
    """Where a way leaves its model."""
    return folder / f"{way.kernel}-{way.precision}-{way.workers}.npz"


def distance(model, other):
    """The largest difference between two models, by tensor, relative to its largest value."""
    differences = [
        np.abs(model[n] - other[n]).max() / max(np.abs(other[n]).max(), 1e-30) for n in model
    ]
    return float(max(differences))


def agreement(task, device, folder, *, quick):
    """(way, against what, distance, verdict) of each way that left a model."""
    models = {}
    for way in ways(task, device, quick=quick):
        if saved(folder, way).exists():
            with np.load(saved(folder, way)) as arrays:
                models[way] = dict(arrays)
    rows = []
    for way, model in models.items():
        alone = Way(kernel=way.kernel, precision=way.precision, workers=1)
        plain = Way(kernel="resident", precision="float32", workers=1)
        if way.workers > 1 and alone in models:
            far = distance(model, models[alone])
            rows.append((way.name, "1 worker", far, "same bits" if far == 0 else "DIFFERS"))
        elif way not in (plain, alone) or plain not in models:
            continue
        elif way.precision != "float32":
            rows.append((way.name, plain.name, distance(model, models[plain]), "coarser"))
        elif way != plain:
            far = distance(model, models[plain])
            rows.append((way.name, plain.name, far, "agrees" if far <= TOLERANCE else "DIFFERS"))
    return rows
