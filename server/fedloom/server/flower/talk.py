"""Calls of a Flower strategy, by the newer API (messages) and the older one (`FitRes`).

A strategy first configures the round, as in Flower, because some keep the model then, and because
it may send clients values in addition to the model.
"""

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
TRIED: Final = 100
"""Rounds that a strategy configures on trial, so that errors of later ones show at submission."""
_TYPES: Final = (bool, int, float, str)
"""What a task's config can hold."""
_KNOWN: Final = frozenset({"server-round", "server_round", "current_round"})
"""Values that every client gets."""
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
    return found


def try_rounds(strategy: Any, model: Params, config: Mapping[str, Any]) -> None:
    """Configure the first rounds on trial.

    Args:
        strategy: is changed by the call.
        model: of the run.
        config: of the run.

    Raises:
        UsageError: a round fails, or sends clients what they cannot get.
    """
    given = dict(config)
    for number in range(1, TRIED + 1):
        told(strategy, number, model, given, config)


def told(
    strategy: Any, number: int, model: Params, given: dict[str, Any], config: Mapping[str, Any]
) -> dict[str, bool | int | float | str]:
    """The values that a strategy sends to clients in a round, other than the run's own.

    Args:
        strategy: is changed by the call.
        number: of the round, from 1.
        model: that the clients receive.
        given: the config that the strategy gets; it may change it.
        config: of the run, which clients get anyway.

    Raises:
        UsageError: it fails, or sends clients what they cannot get.
    """
    name = type(strategy).__name__
    try:
        with _as_server(number):
            found = _configure(strategy, number, model, 2, given)
            beside = _evaluation(strategy, number, model, dict(given))
    except UsageError:
        raise
    except Exception as error:  # any error of the strategy
        raise UsageError(
            f"{name} failed to configure round {number}: {type(error).__name__}: {error}. It gets "
            "the run's [config], and lr."
        ) from error
    if twice := [key for key in found.keys() & beside.keys() if found[key] != beside[key]]:
        raise UsageError(
            f"{name} sends clients two values of {min(twice)} in round {number}, to train and to "
            "evaluate, but they get one: use two names."
        )
    found |= beside
    for key, value in found.items():
        if not isinstance(value, _TYPES):
            raise UsageError(
                f"{name} sends clients {key} in round {number}, a {type(value).__name__}, but they "
                "can get numbers, text, true and false."
            )
    return {key: value for key, value in found.items() if config.get(key) != value}


def aggregated(
    strategy: Any, number: int, model: Params, replies: Sequence["Reply"], given: dict[str, Any]
) -> Params | None:
    """The model that a strategy computes from a round's replies; None if it returns none.

    Args:
        strategy: is changed by the call.
        number: of the round, from 1.
        model: that the clients received.
        replies: in the order of the clients' names.
        given: the config that the strategy gets; it may change it for later rounds.

    Raises:
        TooFewUpdatesError: the strategy does not accept the replies.
    """
    with _as_server(number):
        _configure(strategy, number, model, len(replies), given)
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


def _configure(
    strategy: Any, number: int, model: Params, count: int, given: dict[str, Any]
) -> dict[str, Any]:
    """Configure a round on a model; returns the values for clients, and updates `given`.

    Raises:
        UsageError: clients would get other models, or different values.
    """
    if isinstance(strategy, Older):
        arrays = [np.array(value) for value in model.values()]
        parameters = ndarrays_to_parameters(arrays)
        if hasattr(strategy, "current_weights"):
            strategy.current_weights = arrays
        if getattr(strategy, "initial_parameters", None) is not None:
            strategy.initial_parameters = parameters
        asked = strategy.configure_fit(number, parameters, _Clients(count))
        return _common(
            strategy, number, [(fit.parameters == parameters, fit.config) for _, fit in asked]
        )
    record = ArrayRecord({name: Array(np.array(value)) for name, value in model.items()})
    config = ConfigRecord(dict(given))
    messages = strategy.configure_train(number, record, config, _Nodes(strategy, count))
    found = _common(strategy, number, [_content(each, record) for each in messages])
    given.clear()
    given.update((name, value) for name, value in config.items() if name not in _KNOWN)
    return found


def _evaluation(strategy: Any, number: int, model: Params, given: dict[str, Any]) -> dict[str, Any]:
    """The values for clients that evaluate."""
    if isinstance(strategy, Older):
        parameters = ndarrays_to_parameters([np.array(value) for value in model.values()])
        asked = strategy.configure_evaluate(number, parameters, _Clients(2))
        return _common(strategy, number, [(True, each.config) for _, each in asked])
    record = ArrayRecord({name: Array(np.array(value)) for name, value in model.items()})
    config = ConfigRecord(given)
    messages = strategy.configure_evaluate(number, record, config, _Nodes(strategy, 2))
    return _common(strategy, number, [_content(each, record) for each in messages])


def _content(message: Any, record: ArrayRecord) -> tuple[bool, dict[str, Any]]:
    """Whether a message has the round's model alone, and its config."""
    arrays = list(message.content.array_records.values())
    configs = message.content.config_records.values()
    values = {name: value for config in configs for name, value in config.items()}
    return arrays == [record], values


def _common(
    strategy: Any, number: int, asked: Sequence[tuple[bool, Mapping[str, Any]]]
) -> dict[str, Any]:
    """The config that all clients get."""
    name = type(strategy).__name__
    if not all(same for same, _ in asked):
        raise UsageError(
            f"{name} sends clients other arrays than the model in round {number}, but they get the "
            "model alone."
        )
    found = [{n: v for n, v in config.items() if n not in _KNOWN} for _, config in asked]
    if any(config != found[0] for config in found):
        raise UsageError(
            f"{name} sends clients different values in round {number}, but all get the same."
        )
    return found[0] if found else {}


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
