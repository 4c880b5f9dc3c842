"""The ways to train of gpu.py, and whether the models that they leave agree.

A kernel and precision must give the same bits for any number of workers, after all rounds. Kernels
must agree in float32 within TOLERANCE of a tensor's largest value, after one round: later, on
images of noise, a ReLU that rounding has switched changes everything that follows. How far another
precision is from float32 after one round is shown.
"""

from dataclasses import dataclass

import numpy as np

TOLERANCE = 5e-3
"""Of the largest value, between kernels: rounding, and ReLUs that switch by it. A round changes up
to a fifth of it, so that steps that are a tenth too long show."""


VERDICTS = {"tf32": "coarser", "bf16": "coarser"}
"""Of precisions that need not agree."""


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
    """The ways that are worth a task's time; TF32 and CUDA graphs need a GPU."""
    cuda = device == "cuda"
    small = not task.startswith("ResNet")  # for the others, clients are not stacked
    kernels = {
        "resident": [1, 2] if quick else [1, 2, 4],
        "channels-last": [1, 2] if task.startswith("CNN") else [],
        "graphed": [1, 2] if cuda else [],
        "batched": [1, 2] if small else [],
        "compiled": [1, 2] if small and cuda and not quick else [],
    }
    for kernel, workers in kernels.items():
        precisions = {
            "float32": workers,
            "tf32": workers[:1] if cuda else [],
            "bf16": workers[:2] if kernel in ("resident", "batched") else [],
        }
        for precision, numbers in precisions.items():
            for number in numbers:
                yield Way(kernel=kernel, precision=precision, workers=number)


def saved(folder, way, after=""):
    """Where a way leaves its model: of the last round, or `after` the `-first`."""
    return folder / f"{way.kernel}-{way.precision}-{way.workers}{after}.npz"


def distance(model, other):
    """The largest difference between two models, by tensor, relative to its largest value."""
    differences = [
        np.abs(model[n] - other[n]).max() / max(np.abs(other[n]).max(), 1e-30) for n in model
    ]
    return float(max(differences))


def agreement(task, device, folder, *, quick):
    """(way, against what, distance, verdict) of each way that left a model."""
    found = list(ways(task, device, quick=quick))
    last, first = (models(folder, found, after) for after in ("", "-first"))
    rows = []
    for way in last:
        alone = Way(kernel=way.kernel, precision=way.precision, workers=1)
        plain = Way(kernel="resident", precision="float32", workers=1)
        if way.workers > 1 and alone in last:
            far = distance(last[way], last[alone])
            rows.append((way.name, "1 worker", far, "same bits" if far == 0 else "DIFFERS"))
        elif way == alone and way != plain and plain in first:
            far = distance(first[way], first[plain])
            verdict = "agrees" if far <= TOLERANCE else "DIFFERS"
            rows.append((way.name, plain.name, far, VERDICTS.get(way.precision, verdict)))
    return rows


def models(folder, found, after):
    """What these ways have left, by way."""
    left = {}
    for way in found:
        if (path := saved(folder, way, after)).exists():
            with np.load(path) as arrays:
                left[way] = dict(arrays)
    return left
