"""Linear models of scikit-learn as tensors by name, and back.

A model is `coef` and `intercept`, in the estimator's shapes. An estimator learns nothing else, if
its learning rate does not depend on the number of steps.

Source: scikit-learn's `sklearn/linear_model/_stochastic_gradient.py` and `_logistic.py`, for the
initial values of `partial_fit` and `warm_start`.

Legend: K classes, F features.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn import linear_model
from sklearn.base import clone, is_classifier
from sklearn.linear_model import LogisticRegression

from fedloom.protocol.errors import UsageError
from fedloom.strategies.local_optimizers import LocalOptimizer, LocalSteps

COEF: Final = "coef"
INTERCEPT: Final = "intercept"
STEPPERS: Final[tuple[Any, ...]] = tuple(
    getattr(linear_model, name)
    for name in (
        "SGDClassifier",
        "SGDRegressor",
        "Perceptron",
        "PassiveAggressiveClassifier",  # scikit-learn 1.10 removes these two
        "PassiveAggressiveRegressor",
    )
    if hasattr(linear_model, name)
)
"""Trained by `partial_fit`."""
_WARM: Final = ("lbfgs", "newton-cg", "newton-cholesky", "sag", "saga")
"""Solvers of logistic regression that support a warm start."""

_PASSIVE: Final = ("pa1", "pa2")
"""Learning rates that a loss determines."""

Params = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of estimator that can be trained in rounds.

    Attributes:
        estimator: with the author's settings; never fitted.
        classes: in ascending order, the same on every device; None for a regressor.
    """

    estimator: Any
    classes: NDArray[Any] | None

    @classmethod
    def of(cls, estimator: Any, classes: Sequence[Any] | None) -> "Family":
        """Create the family of an estimator.

        Raises:
            UsageError: it cannot be trained in rounds, or lacks classes.
        """
        name = type(estimator).__name__
        if not issubclass(type(estimator), (*STEPPERS, LogisticRegression)):
            known = ", ".join(kind.__name__ for kind in (*STEPPERS, LogisticRegression))
            raise UsageError(
                f"Expected a linear model that can continue its training ({known}), got {name}. "
                "Scale inputs in the data, not in a pipeline; write a Client for other models."
            )
        _check_settings(estimator.get_params(), name)
        if not is_classifier(estimator):
            return cls(estimator, None)
        found = np.unique(np.asarray([] if classes is None else list(classes)))
        if len(found) < 2:
            raise UsageError(
                f"{name} needs classes=[…], all classes of all devices, because this device may "
                f"lack some; got {len(found)}."
            )
        return cls(estimator, found)

    @property
    def steps(self) -> bool:
        """Whether it is trained by `partial_fit`, not by `fit`."""
        return isinstance(self.estimator, STEPPERS)

    @property
    def optimizer(self) -> LocalOptimizer:
        """The steps of its training."""
        settings = self.estimator.get_params()
        name, penalty = type(self.estimator).__name__, settings.get("penalty")
        passive = name.startswith("PassiveAggressive") or settings.get("learning_rate") in _PASSIVE
        if not self.steps or passive or penalty in {"l1", "elasticnet"}:
            # Solvers, step sizes by the loss, and weights cut at zero.
            return LocalOptimizer(
                f"{name}(penalty={penalty!r})" if penalty else name, LocalSteps.ANY
            )
        if penalty == "l2":
            return LocalOptimizer(f"{name}(penalty='l2')", LocalSteps.LINEAR)
        return LocalOptimizer(name, LocalSteps.CONSTANT)

    def shapes(self, num_features: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors by name."""
        if self.classes is None:
            return {COEF: (num_features,), INTERCEPT: (1,)}
        rows = 1 if len(self.classes) == 2 else len(self.classes)
        return {COEF: (rows, num_features), INTERCEPT: (rows,)}

    def initial(self, num_features: int) -> Params:
        """The initial model of scikit-learn: zeros, float64."""
        return {name: np.zeros(shape) for name, shape in self.shapes(num_features).items()}

    def begun(self, params: Mapping[str, NDArray[Any]], **settings: Any) -> Any:
        """An estimator that continues from parameters.

        Args:
            params: `coef` and `intercept`.
            settings: of the estimator; settings that it lacks are ignored.

        Raises:
            UsageError: the parameters are not this estimator's.
        """
        coef = params.get(COEF)
        shapes = self.shapes(0 if coef is None or not coef.ndim else coef.shape[-1])
        got = {name: array.shape for name, array in params.items()}
        if got != shapes or {array.dtype.kind for array in params.values()} != {"f"}:
            wanted = ", ".join(f"{n} {s}" for n, s in self.shapes(0).items()).replace("0)", "F)")
            raise UsageError(
                f"Expected the model of a {type(self.estimator).__name__} ({wanted}, F features), "
                f"got {', '.join(f'{n} {s}' for n, s in got.items())}. Create the run's model with "
                "`fedloom model init`."
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the author has seen it
            made = clone(self.estimator)
        known = made.get_params()
        made.set_params(**{name: value for name, value in settings.items() if name in known})
        # The compiled loops need arrays in C order and of one dtype, and write into them.
        made.coef_, made.intercept_ = (
            np.array(params[name], params[COEF].dtype, order="C") for name in (COEF, INTERCEPT)
        )
        made.n_features_in_ = made.coef_.shape[-1]
        made.t_ = 1.0
        if self.classes is not None:
            made.classes_ = self.classes
        return made

    def numbered(self, y: NDArray[Any]) -> NDArray[np.intp]:
        """The index of each target's class.

        Raises:
            UsageError: a target is not one of the classes.
        """
        assert self.classes is not None
        places = np.minimum(np.searchsorted(self.classes, y), len(self.classes) - 1)
        if len(strange := np.flatnonzero(self.classes[places] != y)):
            raise UsageError(
                f"Expected targets of {_some(self.classes)}, got {y[strange[0]]!r}. Give every "
                "class in classes=[…], with the same names on every device."
            )
        return places


def load(
    estimator: Any, params: Mapping[str, NDArray[Any]], *, classes: Sequence[Any] | None = None
) -> Any:
    """Put a model, such as `load_file` reads, into a copy of an estimator, for prediction.

    Raises:
        UsageError: the parameters are not this estimator's, or it lacks classes.
    """
    return Family.of(estimator, classes).begun(params)


def initial(estimator: Any, num_features: int, *, classes: Sequence[Any] | None = None) -> Params:
    """The initial model of a run, for `fedloom.client.save_file`.

    Args:
        estimator: the same as on the clients.
        num_features: F.
        classes: the same as on the clients.

    Raises:
        UsageError: the estimator cannot be trained in rounds, or lacks classes.
    """
    return Family.of(estimator, classes).initial(num_features)


def _check_settings(settings: Mapping[str, Any], name: str) -> None:
    """Refuse settings with which training would not continue from the received model."""
    warm = settings.get("solver", "lbfgs") in _WARM
    wrong = {
        "average=False": settings.get("average"),
        "early_stopping=False": settings.get("early_stopping"),
        f"solver of {', '.join(_WARM)}": not warm,
        'class_weight other than "balanced"': settings.get("class_weight") == "balanced",
    }
    for wanted, is_wrong in wrong.items():
        if is_wrong:
            raise UsageError(f"To be trained in rounds, {name} needs {wanted}.")


def _some(classes: NDArray[Any]) -> str:
    shown = ", ".join(map(repr, classes[:10].tolist()))
    return f"{len(classes)} classes ({shown}{', …' if len(classes) > 10 else ''})"
