"""Calls of a Flower strategy, by the newer API (messages) and the older one (`FitRes`).

A strategy first configures the round, as in Flower, because some keep the model then. Values that
it would send to clients in addition to the model do not reach them, so a strategy that sends any is
refused when it is loaded.
"""

import copy
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Metadata, MetricRecord, RecordDict
from flwr.app.constants import DEFAULT_TTL
from flwr.app.message.message import make_message
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import Strategy as Older
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import Strategy as Newer
from flwr.supercore.task_identity import TaskIdentity

from fedloom.protocol.errors import UsageError
from fedloom.strategies import Params, TooFewUpdatesError

if TYPE_CHECKING:
    from fedloom.server.flower.whole import Reply

SERVER: Final = 1
_TOLD: Final = frozenset({"server-round", "server_round", "current_round"})
_ELSEWHERE: Final = {
    "DifferentialPrivacy": "differential privacy is this server's own: [privacy]",
    "DPFedAvg": "differential privacy is this server's own: [privacy]",
    "FedXgb": "it exchanges trees, not tensors: see docs/strategies/trees.md",
    "FaultTolerant": "this server's rounds are fault-tolerant: cohort.quorum",
}
"""Prefixes of names of unsupported strategies, and the reasons."""


def checked(found: Any, code: str) -> Any:
    """A Flower strategy: the object itself, or the result of a function without arguments.

    Raises:
        UsageError: it is not a Flower strategy, or is not supported.
    """
    if not isinstance(found, Newer | Older) and callable(found):
        found = found()
    if not isinstance(found, Newer | Older):
        raise UsageError(
            f"Expected {code} to be a Flower strategy, or a function without arguments that "
            f"returns one, got a {type(found).__name__}."
        )
    for kind in type(found).__mro__:
        for start, why in _ELSEWHERE.items():
            if kind.__name__.startswith(start):
                raise UsageError(f"{kind.__name__} is not supported: {why}.")
    told = _told(copy.deepcopy(found)) - _TOLD
    if told:
        raise UsageError(
            f"{type(found).__name__} sends clients {', '.join(sorted(told))}, but clients get only "
            "the model. Put these values into the run's [config] instead."
        )
    return found


def _told(strategy: Any) -> set[str]:
    """Names of the values that a strategy would send to clients."""
    trial = {"0": np.zeros(1)}
    try:
        with _as_server(1):
            return _configured(strategy, 1, trial, 2)
    except Exception as error:  # any error of the strategy
        raise UsageError(
            f"{type(strategy).__name__} failed to configure a round: {type(error).__name__}: "
            f"{error}"
        ) from error


def aggregated(
    strategy: Any, number: int, model: Params, replies: Sequence["Reply"]
) -> Params | None:
    """The model that a strategy computes from a round's replies; None if it returns none.

    Args:
        strategy: is changed by the call.
        number: of the round, from 1.
        model: that the clients received.
        replies: in the order of the clients' names.

    Raises:
        TooFewUpdatesError: the strategy does not accept the replies.
    """
    with _as_server(number):
        _configured(strategy, number, model, len(replies))
        if isinstance(strategy, Older):
            return _by_older(strategy, number, model, replies)
        shared = set.intersection(*(set(reply.metrics) for reply in replies))
        key = getattr(strategy, "weighted_by_key", "num-examples")
        messages = [
            _message(place, number, reply, key, shared) for place, reply in enumerate(replies, 2)
        ]
        try:
            arrays, _ = strategy.aggregate_train(number, messages)
        except InconsistentMessageReplies as error:
            raise TooFewUpdatesError(f"The strategy refuses the updates: {error}") from error
        return None if arrays is None else {n: array.numpy() for n, array in arrays.items()}


def _by_older(
    strategy: Any, number: int, model: Params, replies: Sequence["Reply"]
) -> Params | None:
    results = [
        (
            SimpleNamespace(cid=reply.client),
            FitRes(
                status=Status(Code.OK, ""),
                parameters=ndarrays_to_parameters(list(reply.arrays.values())),
                num_examples=_whole_number(reply.weight),
                metrics=dict(reply.metrics),
            ),
        )
        for reply in replies
    ]
    parameters, _ = strategy.aggregate_fit(number, results, [])
    if parameters is None:
        return None
    return dict(zip(model, parameters_to_ndarrays(parameters), strict=True))


def _configured(strategy: Any, number: int, model: Params, count: int) -> set[str]:
    """Configure a round on a model; returns the names of values for clients."""
    if isinstance(strategy, Older):
        arrays = [np.array(value) for value in model.values()]
        parameters = ndarrays_to_parameters(arrays)
        if hasattr(strategy, "current_weights"):
            strategy.current_weights = arrays
        if getattr(strategy, "initial_parameters", None) is not None:
            strategy.initial_parameters = parameters
        asked = strategy.configure_fit(number, parameters, _Clients(count))
        return {name for _, instructions in asked for name in instructions.config}
    record = ArrayRecord({name: Array(np.array(value)) for name, value in model.items()})
    messages = strategy.configure_train(number, record, ConfigRecord(), _Nodes(strategy, count))
    return {
        name
        for message in messages
        for config in message.content.config_records.values()
        for name in config
    }


class _Nodes:
    """A replacement of Flower's grid, with at least as many nodes as the strategy waits for."""

    def __init__(self, strategy: Any, count: int) -> None:
        names = ("min_available_nodes", "min_train_nodes")
        self._count = max(count, *(int(getattr(strategy, name, 0)) for name in names))

    def get_node_ids(self) -> list[int]:
        return list(range(2, self._count + 2))


class _Clients:
    """A replacement of Flower's client manager."""

    def __init__(self, count: int) -> None:
        self._clients = [SimpleNamespace(cid=str(number)) for number in range(count)]

    def num_available(self) -> int:
        return len(self._clients)

    def all(self) -> Mapping[str, Any]:
        return {client.cid: client for client in self._clients}

    def wait_for(self, *_: Any, **__: Any) -> bool:
        return True

    def sample(self, *_: Any, **__: Any) -> list[Any]:
        return self._clients


def _message(node: int, number: int, reply: "Reply", key: str, shared: Iterable[str]) -> Any:
    metrics: dict[str, float] = {name: reply.metrics[name] for name in sorted(shared)}
    metrics[key] = _whole_number(reply.weight)
    content = RecordDict(
        {
            "arrays": ArrayRecord({n: Array(value) for n, value in reply.arrays.items()}),
            "metrics": MetricRecord(metrics),
        }
    )
    metadata = Metadata(
        run_id=TaskIdentity.run_id,
        message_id=f"{number}.{reply.client}",
        src_node_id=node,
        dst_node_id=SERVER,
        reply_to_message_id=f"{number}",
        group_id=str(number),
        created_at=time.time(),
        ttl=DEFAULT_TTL,
        message_type="train",
    )
    return make_message(metadata, content)


def _whole_number(weight: float) -> Any:
    return int(weight) if weight.is_integer() else weight


@contextmanager
def _as_server(number: int) -> Iterator[None]:
    """Set Flower's task identity, and seed the random generators by the round's number."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = SERVER
    # Flower's strategies use the process's generators; no secret depends on them.
    drawn, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(drawn)
        np.random.set_state(numpys)  # noqa: NPY002
