"""Loss and accuracy of a linear classifier: log loss if it has probabilities, else hinge loss.

Sources: the hinge loss of several classes is that of Crammer and Singer 2001, On the Algorithmic
Implementation of Multiclass Kernel-based Vector Machines, as in `sklearn.metrics.hinge_loss`.

Legend: N examples, K classes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def of_classifier(estimator: Any, x: NDArray[Any], y: NDArray[np.intp]) -> dict[str, float]:
    """Means over a batch.

    Args:
        estimator: fitted.
        x: inputs, [N, features].
        y: numbers of the classes, [N].

    Returns:
        `loss` and `accuracy`.
    """
    scores = estimator.decision_function(x)
    if scores.ndim == 1:
        margins = np.where(y == 1, scores, -scores)
        # As in `predict`: a score of zero is the first class.
        hits = (margins > 0) | ((scores == 0) & (y == 0))
    else:
        rows = np.arange(len(y))
        hits = scores.argmax(axis=1) == y
        own = scores[rows, y]
        scores[rows, y] = -np.inf
        margins = own - scores.max(axis=1)
    if hasattr(estimator, "predict_proba"):
        likely = np.asarray(estimator.predict_proba(x), np.float64)[np.arange(len(y)), y]
        losses = -np.log(np.clip(likely, np.finfo(np.float64).eps, 1))
    else:
        losses = np.maximum(0, 1 - margins)
    return {"loss": float(np.mean(losses)), "accuracy": float(np.mean(hits))}
