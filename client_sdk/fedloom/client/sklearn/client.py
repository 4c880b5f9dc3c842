"""A federated client around a linear model of scikit-learn.

Sources: local training as in McMahan et al. 2017, https://arxiv.org/abs/1602.05629, Algorithm 1,
with scikit-learn's own loop, which steps on one example after another.

Invariant: what a task returns depends on the parameters received, the task and the data alone; with
one client it is what `partial_fit` by itself comes to, bit for bit.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from fedloom.client.api import Client, Params, Task
from fedloom.client.data import Growing, Shard, as_shard
from fedloom.client.numpy import (
    mean_metrics,
    refuse_gradient_rules,
    refuse_module_settings,
    some,
)
from fedloom.client.sklearn import measures
from fedloom.client.sklearn.linear import COEF, INTERCEPT, Family
from fedloom.client.training.length import StopRule
from fedloom.protocol.errors import UsageError

_SEEDS = 1 << 32
"""scikit-learn's seeds are below this."""


def sklearn_client(
    estimator: Any,
    data: Any,
    *,
    classes: Sequence[Any] | None = None,
    held_out: Any = None,
) -> "LinearClient":
    """Make a client that trains a linear model on data that stays here.

    The round's settings give the length of the training and the learning rate, in place of the
    estimator's own `learning_rate` and `eta0`; passive-aggressive models keep theirs, which is C.
    The batch size says how many examples one `partial_fit` gets; it steps on each by itself.
    `LogisticRegression` is fitted anew from the received model in each round, with `max_iter`
    of the round's epochs or steps.

    Args:
        estimator: SGDClassifier, SGDRegressor, Perceptron, PassiveAggressiveClassifier,
            PassiveAggressiveRegressor or LogisticRegression; it is copied, never fitted.
        data: arrays (x, y), a shard of `fedloom.client.data`, or a data set with a length.
        classes: all that any device may have; left out with a regressor, and where the shard
            knows how many there are.
        held_out: as `data`, to evaluate on, never trained on; None: nothing is evaluated here.

    Raises:
        UsageError: the estimator cannot be trained in rounds, lacks classes, or there is no
            example.
    """
    shard = as_shard(data)
    if not isinstance(shard, Growing):
        some(shard)
    if classes is None and shard.num_classes is not None:
        classes = range(shard.num_classes)
    return LinearClient(
        Family.of(estimator, classes), shard, None if held_out is None else as_shard(held_out)
    )


class LinearClient(Client):
    """Trains and evaluates a linear model; `sklearn_client` makes one.

    Args:
        family: of the estimator.
        shard: to train on.
        held_out: to evaluate on.
    """

    def __init__(self, family: Family, shard: Shard, held_out: Shard | None) -> None:
        self._family, self._shard, self._held_out = family, shard, held_out

    def initial(self) -> Params:
        """Model that a run may begin with: zeros, as scikit-learn begins."""
        return self._family.initial(np.size(some(self._shard.fixed())[0][0]))

    def fitted(self, params: Params) -> Any:
        """Put a model into a copy of the estimator, to predict with.

        Raises:
            UsageError: the parameters are not this estimator's.
        """
        return self._family.begun(params)

    def train(self, params: Params, task: Task) -> tuple[Params, int, dict[str, float]]:
        """Train from the received parameters.

        Returns:
            `coef` and `intercept`, the number of examples here, and the loss and accuracy that the
            trained model has on them.

        Raises:
            UsageError: the parameters are not this estimator's, or the run asks for what
                scikit-learn's loop cannot do.
        """
        self._check(params, task)
        shard = some(self._shard.fixed())
        if task.rule.needs_loss:
            task.local.initial_loss = self._measured(params, shard)["loss"]
        train = self._steps if self._family.steps else self._fit_again
        trained = train(params, task, shard)
        new = {COEF: trained.coef_, INTERCEPT: np.atleast_1d(trained.intercept_)}
        return new, len(shard), self._measured(new, shard)

    def evaluate(self, params: Params, task: Task) -> tuple[int, dict[str, float]]:  # noqa: ARG002
        """Evaluate the received parameters: `loss`, and `accuracy` of a classifier."""
        if self._held_out is None:
            return 0, {}
        held_out = self._held_out.fixed()
        return len(held_out), self._measured(params, held_out)

    def can_evaluate(self) -> bool:
        """Whether there is data to evaluate on."""
        return self._held_out is not None and len(self._held_out) > 0

    def _check(self, params: Params, task: Task) -> None:
        who = "scikit-learn's own loop"
        refuse_gradient_rules(task.rule, who, "fedloom.client.numpy.gradient_client")
        refuse_module_settings(task)
        if task.settings.clip_norm is not None:
            raise UsageError(
                f"Expected a run without train.clip_norm with {who}, which shows no gradients, "
                f"got {task.settings.clip_norm:g}. Leave it out, or use gradient_client."
            )
        if left := sorted(params.keys() - task.tensors(params)):
            raise UsageError(
                f"Expected a run that trains all of a linear model, got one without {left[0]!r}. "
                "Leave out train.only and train.tensor_share."
            )

    def _steps(self, params: Params, task: Task, shard: Shard) -> Any:
        settings, family = task.settings, self._family
        kept = family.estimator.get_params().get("learning_rate") in ("pa1", "pa2")
        rate = {} if kept else {"learning_rate": "constant", "eta0": settings.learning_rate}
        estimator = family.begun(params, random_state=task.seed % _SEEDS, **rate)
        known = {} if family.classes is None else {"classes": family.classes}
        length = {"epochs": settings.epochs, "steps": settings.steps}
        stopping = StopRule(settings, len(shard), task.should_stop, report=task.progress)
        task.local.steps = 0
        batches = shard.training(task.seed, settings.batch_size, **length)
        for batch in batches:
            if stopping.should_stop():
                break
            x, y = self._rows(*batch, estimator.coef_)
            estimator.partial_fit(x, y, **known)
            task.local.steps += len(y)  # it takes one on each example
            loss = None
            if settings.patience is not None:  # else another pass would be for show alone
                now = {COEF: estimator.coef_, INTERCEPT: estimator.intercept_}
                loss = self._of_batch(now, x, y)["loss"]
            stopping.watch(loss, len(y))
        return estimator

    def _fit_again(self, params: Params, task: Task, shard: Shard) -> Any:
        x, y = self._rows(*shard.all(), params[COEF])
        assert self._family.classes is not None
        if missing := sorted(set(self._family.classes.tolist()) - set(y.tolist()), key=str):
            raise UsageError(
                f"Expected examples of every class with LogisticRegression, got none of "
                f"{missing[0]!r} on this device. Use SGDClassifier(loss='log_loss')."
            )
        length = task.settings.epochs or task.settings.steps or 1
        estimator = self._family.begun(
            params, random_state=task.seed % _SEEDS, warm_start=True, max_iter=length
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it is to stop after so many
            estimator.fit(x, y)
        task.progress(1.0)
        return estimator

    def _rows(
        self, x: NDArray[Any], y: NDArray[Any], coef: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """A batch as scikit-learn wants it: one row of features each, in the model's dtype.

        Raises:
            UsageError: rows are not as long as the model, or a target is no class.
        """
        x = np.ascontiguousarray(x.reshape(len(x), -1), coef.dtype)
        if x.shape[1] != coef.shape[-1]:
            raise UsageError(
                f"Expected rows of {coef.shape[-1]} features, as the model has, got {x.shape[1]}."
            )
        if self._family.classes is None:
            return x, np.ascontiguousarray(y, coef.dtype)
        self._family.numbered(y)
        return x, y

    def _measured(self, params: Params, shard: Shard) -> dict[str, float]:
        return mean_metrics(self._of_batch, params, shard)

    def _of_batch(self, params: Params, x: NDArray[Any], y: NDArray[Any]) -> dict[str, float]:
        x, y = self._rows(x, y, params[COEF])
        estimator = self._family.begun(params)
        if self._family.classes is None:
            return {"loss": float(np.mean((estimator.predict(x) - y) ** 2))}
        return measures.of_classifier(estimator, x, self._family.numbered(y))
