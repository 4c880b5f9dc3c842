"""Flower's older messages, for `client_fn` and `NumPyClient`: arrays without names."""

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import RecordDict
from flwr.common import Code, EvaluateIns, FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common import recorddict_compat
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError


def instructions(
    train: bool, arrays: Sequence[NDArray[Any]], config: Mapping[str, Any]
) -> RecordDict:
    """The message to a `NumPyClient`, to fit or to evaluate."""
    parameters = ndarrays_to_parameters(list(arrays))
    # Both spellings are in use: dashes in run configs, underscores in older examples.
    both = {**{name.replace("-", "_"): v for name, v in config.items()}, **config}
    if train:
        return recorddict_compat.fitins_to_recorddict(FitIns(parameters, both), keep_input=True)
    return recorddict_compat.evaluateins_to_recorddict(
        EvaluateIns(parameters, both), keep_input=True
    )


def trained(reply: RecordDict) -> tuple[list[NDArray[Any]], int, dict[str, float]]:
    """Arrays, number of examples and metrics of a reply to training.

    Raises:
        UsageError: the app reports an error.
    """
    found = recorddict_compat.recorddict_to_fitres(reply, keep_input=False)
    _check(found.status)
    arrays = parameters_to_ndarrays(found.parameters)
    return arrays, int(found.num_examples), _numbers(found.metrics)


def evaluated(reply: RecordDict) -> tuple[int, dict[str, float]]:
    """Number of examples and metrics of a reply to evaluation; 0 and {} without such a function.

    Raises:
        UsageError: the app reports an error.
    """
    found = recorddict_compat.recorddict_to_evaluateres(reply)
    if found.status.code is Code.EVALUATE_NOT_IMPLEMENTED:
        return 0, {}
    _check(found.status)
    return int(found.num_examples), {"loss": float(found.loss), **_numbers(found.metrics)}


def _check(status: Any) -> None:
    if status.code is not Code.OK:
        raise UsageError(f"The Flower app answered {status.code.name}: {status.message}")


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics that can be averaged; text and bytes are left out."""
    return {n: float(v) for n, v in metrics.items() if isinstance(v, bool | int | float)}
