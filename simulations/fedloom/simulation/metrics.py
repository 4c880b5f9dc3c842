"""Ready metrics for `Experiment.metrics`: F1, areas under ROC curves, perplexity, values by group.

    Experiment(..., metrics={"f1": metrics.f1, "auc": metrics.auc})

Each maps outputs [N, K, …] (scores of K classes, such as logits) and targets [N, …] (class
numbers; negative ones are left out) to a number, or to None where it is undefined. Sums are of
float64.

Sources: van Rijsbergen 1979, "Information Retrieval", chapter 7 (F1); Hand and Till 2001 and
Mason and Graham 2002 (the area as the statistic of Mann and Whitney, ties count half).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedloom.protocol.errors import UsageError
from fedloom.protocol.updates.header import MAX_METRIC
from fedloom.simulation.kernels.metrics import Metric, Value, only_on_test


def accuracy(outputs: Tensor, targets: Tensor) -> float | None:
    """Share of targets whose class has the largest score; the first of equal ones."""
    scores, classes = _scored(outputs, targets)
    return float((scores.argmax(1) == classes).double().mean()) if len(classes) else None


def f1(outputs: Tensor, targets: Tensor) -> float | None:
    """Mean of the classes' F1, over the classes among targets and predictions ("macro").

    As scikit-learn's `f1_score(targets, predictions, average="macro")`.
    """
    scores, classes = _scored(outputs, targets)
    if not len(classes):
        return None
    predicted = scores.argmax(1)
    k = scores.shape[1]
    hits = torch.bincount(classes[predicted == classes], minlength=k).double()
    sums = torch.bincount(classes, minlength=k) + torch.bincount(predicted, minlength=k)
    there = sums > 0
    return float((2 * hits[there] / sums[there]).mean())


def auc(outputs: Tensor, targets: Tensor) -> float | None:
    """Area under the ROC curve; of more than two classes the mean of each against the rest.

    Two classes are ranked by the difference of their scores, more by their softmax, as
    scikit-learn's `roc_auc_score(…, multi_class="ovr")` of these.

    Returns:
        None if a class is missing among the targets.
    """
    scores, classes = _scored(outputs, targets)
    k = scores.shape[1]
    if k < 2 or int((torch.bincount(classes, minlength=k) > 0).sum()) < k:
        return None
    if k == 2:
        return _area((scores[:, 1] - scores[:, 0]).numpy(), classes.numpy() == 1)
    shares = scores.softmax(1).numpy()
    areas = [_area(shares[:, place], classes.numpy() == place) for place in range(k)]
    return float(np.mean(areas))


def perplexity(outputs: Tensor, targets: Tensor) -> float | None:
    """Exp of the mean cross-entropy of the targets, in nats; at most 1e100."""
    scores, classes = _scored(outputs, targets)
    if not len(classes):
        return None
    return float(functional.cross_entropy(scores, classes).exp().clamp(max=MAX_METRIC))


READY: Mapping[str, Metric] = {"f1": f1, "auc": auc, "perplexity": perplexity}
"""Metrics that a file may name; every test measures the accuracy itself."""


def by_group(metric: Metric, groups: Sequence[object] | NDArray[np.generic]) -> Metric:
    """A metric of each group of the test examples, and the largest difference as `gap`.

    Args:
        metric: of a group.
        groups: of each test example, in their order.

    Returns:
        A function of all test examples. It measures no client, not even one that holds out as
        many examples, whose groups are others.
    """
    labels = np.asarray(groups)

    def measured(outputs: Tensor, targets: Tensor) -> Mapping[str, Value] | None:
        if len(targets) != len(labels):
            return None
        found: dict[str, float] = {}
        for group in np.unique(labels):
            here = torch.from_numpy(np.flatnonzero(labels == group))
            value = metric(outputs[here], targets[here])
            if isinstance(value, Mapping):
                raise UsageError("by_group needs a metric of one number.")
            if value is not None:
                found[f"{group}"] = float(value)
        gap = max(found.values()) - min(found.values()) if found else None
        return {**found, "gap": gap}

    return only_on_test(measured)


def _scored(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Scores [M, K] in float64 and classes [M] of the places that have a class."""
    if outputs.ndim != targets.ndim + 1 or targets.is_floating_point():
        raise UsageError(
            "Expected outputs [N, K, …] with scores of K classes and targets [N, …] with class "
            f"numbers, got shapes {list(outputs.shape)} and {list(targets.shape)} of "
            f"{targets.dtype}."
        )
    scores = outputs.movedim(1, -1).reshape(-1, outputs.shape[1]).double()
    classes = targets.reshape(-1)
    there = classes >= 0
    return scores[there], classes[there]


def _area(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    """The share of pairs of a positive and a negative that the scores order rightly."""
    _, places, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    ranks = (last - (sizes - 1) / 2)[places]
    num = int(positive.sum())
    others = len(positive) - num
    return float((ranks[positive].sum() - num * (num + 1) / 2) / (num * others))
