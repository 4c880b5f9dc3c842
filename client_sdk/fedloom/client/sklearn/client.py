"""A federated client around a linear model of scikit-learn.

Sources: local training as in McMahan et al. 2017, https://arxiv.org/abs/1602.05629, Algorithm 1,
with scikit-learn's loop, which takes one step per example.

Invariant: the result of a task depends only on the received parameters, the task and the data; with
one client it has the bits of `partial_fit` alone.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from fedloom.client.api import Client, Params, Task
from fedloom.client.data import Growing, Shard, as_shard
from fedloom.client.numpy import mean_metrics, refuse_gradient_rules, refuse_module_settings, some
from fedloom.client.sklearn import measures
from fedloom.client.sklearn.linear import COEF, INTERCEPT, Family
from fedloom.client.training.adapter_scales import check_scales
from fedloom.client.training.length import StopRule, batches_of
from fedloom.protocol.errors import UsageError
from fedloom.strategies.compatibility import check_optimizer

_SEEDS = 1 << 32
"""scikit-learn's seeds are below this."""


def sklearn_client(
    estimator: Any, data: Any, *, classes: Sequence[Any] | None = None, held_out: Any = None
) -> "LinearClient":
    """Make a client that trains a linear model on local data.

    The round's settings give the length of the training and the learning rate, in place of the
    estimator's `learning_rate` and `eta0`; passive-aggressive models keep theirs, which is C. The
    batch size is the number of examples per `partial_fit`, which takes one step on each.
    `LogisticRegression` is fitted in each round from the received model, with `max_iter` set to the
    round's epochs or steps.

    Args:
        estimator: SGDClassifier, SGDRegressor, Perceptron, PassiveAggressiveClassifier,
            PassiveAggressiveRegressor or LogisticRegression; it is copied, never fitted.
        data: arrays (x, y), a shard of `fedloom.client.data`, or a data set with a length.
        classes: all classes of all devices; None for a regressor, or if the shard has the number
            of classes.
        held_out: as `data`, for evaluation, never trained on; None for no evaluation.

    Raises:
        UsageError: the estimator cannot be trained in rounds, the classes are missing, or there is
            no example.
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
    """Trains and evaluates a linear model; `sklearn_client` makes one."""

    def __init__(self, family: Family, shard: Shard, held_out: Shard | None) -> None:
        self._family, self._shard, self._held_out = family, shard, held_out

    def initial(self) -> Params:
        """An initial model for a run: zeros, as in scikit-learn."""
        return self._family.initial(np.size(some(self._shard.fixed())[0][0]))

    def fitted(self, params: Params) -> Any:
        """Put a model into a copy of the estimator, for prediction.

        Raises:
            UsageError: the parameters are not this estimator's.
        """
        return self._family.begun(params)

    def train(self, params: Params, task: Task) -> tuple[Params, int, dict[str, float]]:
        """Train from the received parameters.

        Returns:
            `coef` and `intercept`, the number of examples, and the trained model's loss and
            accuracy on them.

        Raises:
            UsageError: the parameters are not this estimator's, or the run needs features that
                scikit-learn's loop lacks.
        """
        self._check(params, task)
        shard = some(self._shard.fixed())
        if task.rule.needs_loss:
            task.local.initial_loss = self._measured(params, shard)["loss"]
        train = self._steps if self._family.steps else self._fit_again
        trained = train(params, task, shard)
        new = {COEF: trained.coef_, INTERCEPT: np.atleast_1d(trained.intercept_)}
        return new, len(shard), self._measured(new, shard)

    def evaluate(self, params: Params, task: Task) -> tuple[int, dict[str, float]]:
        """Evaluate the received parameters: `loss`, and `accuracy` of a classifier."""
        if self._held_out is None:
            return 0, {}
        check_scales(task.local.adapters)
        held_out = self._held_out.fixed()
        return len(held_out), self._measured(params, held_out)

    def can_evaluate(self) -> bool:
        """Whether the client has data for evaluation."""
        return self._held_out is not None and len(self._held_out) > 0

    def _check(self, params: Params, task: Task) -> None:
        who = "scikit-learn's loop"
        refuse_gradient_rules(task.rule, who, "fedloom.client.numpy.gradient_client")
        refuse_module_settings(task)
        try:
            check_optimizer(task.rule, self._family.optimizer)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if task.settings.clip_norm is not None:
            raise UsageError(
                f"{who} does not support train.clip_norm, got {task.settings.clip_norm:g}. Remove "
                "it, or use gradient_client."
            )
        if left := sorted(params.keys() - task.tensors(params)):
            raise UsageError(
                f"Expected a run that trains all tensors of a linear model, got one without "
                f"{left[0]!r}. Remove train.only and train.tensor_share."
            )

    def _steps(self, params: Params, task: Task, shard: Shard) -> Any:
        settings, family = task.settings, self._family
        kept = family.estimator.get_params().get("learning_rate") in ("pa1", "pa2")
        rate = {} if kept else {"learning_rate": "constant", "eta0": settings.learning_rate}
        estimator = family.begun(params, random_state=task.seed % _SEEDS, **rate)
        known = {} if family.classes is None else {"classes": family.classes}
        length = {"epochs": settings.epochs, "steps": settings.steps}
        stopping = StopRule(
            settings, batches_of(len(shard), settings.batch_size), task.should_stop,
            report=task.progress,
        )  # fmt: skip
        task.local.steps = 0
        batches = shard.training(task.seed, settings.batch_size, **length)
        for batch in batches:
            if stopping.should_stop():
                break
            x, y = self._rows(*batch, estimator.coef_)
            estimator.partial_fit(x, y, **known)
            task.local.steps += len(y)  # one step per example
            loss = None
            if settings.patience is not None:  # only then the loss is needed
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
            warnings.simplefilter("ignore", ConvergenceWarning)  # max_iter is intended
            estimator.fit(x, y)
        task.progress(1.0)
        return estimator

    def _rows(
        self, x: NDArray[Any], y: NDArray[Any], coef: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """A batch for scikit-learn: one row of features per example, in the model's dtype.

        Raises:
            UsageError: the rows have another length than the model, or a target is not a class.
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
