"""A Flower `ClientApp` as a `Client`: a task becomes a message, and the reply becomes an update.

`MessageClient` converts, for an app that runs anywhere. `FlowerClient` runs it here and replaces
Flower's runtime: it keeps one context per client and run between rounds, and sets the process's
`TaskIdentity`. Both forms of messages are supported: records for functions that are registered by
`@app.train()` and the like, and the older form for `client_fn`. The app applies its mods itself.

Invariants: a reply is checked against the model before it becomes an update; a repeated task gets
the context of its first execution.
"""

import json
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.constants import DEFAULT_TTL
from flwr.app.message.message import make_message
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as Written
from flwr.supercore.task_identity import TaskIdentity

from fedloom.client.api import Client, Metrics, Params, Task, Update, Weighting
from fedloom.client.flower import legacy, records
from fedloom.client.flower.contexts import Contexts, Step
from fedloom.client.numpy import refuse_module_settings
from fedloom.client.training.adapter_scales import check_scales
from fedloom.protocol.errors import UsageError
from fedloom.protocol.flower_messages import number_of
from fedloom.protocol.task_kind import Kind

SERVER: Final = 1
"""Flower's number of the server node."""
MESSAGE_TYPES: Final = {
    Kind.TRAIN: ("flower-train", "train", ("train",)),
    Kind.EVALUATE: ("flower-evaluate", "evaluate", ("evaluate", "query")),
}
"""By kind of task: the run's setting that names the app's function, its default, its choices."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """What a Flower app is asked for a task.

    Attributes:
        task: from the server.
        message_type: selects the app's function, such as `train` or `evaluate.fast`.
        config: of the run, as the app's `run_config`.
        content: of the message.
    """

    task: Task
    message_type: str
    config: dict[str, Any]
    content: RecordDict

    def message(self, run_id: int, node_id: int, created_at: float) -> Message:
        """The message from the server node; `created_at` is a Unix time."""
        task = self.task
        metadata = Metadata(
            run_id=run_id,
            message_id=f"{task.run}.{task.round}.{self.message_type}",
            src_node_id=SERVER,
            dst_node_id=node_id,
            reply_to_message_id="",
            group_id=str(task.round),
            created_at=created_at,
            ttl=DEFAULT_TTL,
            message_type=self.message_type,
        )
        return make_message(metadata, self.content)


class MessageClient(Client):
    """A client whose tasks a Flower app does, wherever it runs.

    Args:
        defaults: of the run's config.
        is_legacy: whether the app is made by `client_fn`.
    """

    def __init__(self, defaults: Mapping[str, Any], *, is_legacy: bool) -> None:
        self._defaults = dict(defaults)
        self._is_legacy = is_legacy

    @abstractmethod
    def _answer(self, instruction: Instruction) -> Message:
        """The app's reply."""

    def train(self, params: Params, task: Task) -> Update:
        """Train by the app.

        Raises:
            UsageError: the app's reply is invalid, or the run needs features that Flower apps lack.
        """
        _refuse(task)
        reply = self._ask(params, task, Kind.TRAIN)
        if self._is_legacy:
            values, num_examples, metrics = legacy.trained(reply)
            new = records.from_list(values, params)
            return _update(new, num_examples, metrics, task)
        found = list(reply.array_records.values())
        if len(found) != 1:
            raise UsageError(
                f"Expected one ArrayRecord in the Flower app's reply, got {len(found)}."
            )
        examples, metrics = records.metrics_of(reply.metric_records)
        if examples is None and task.weighting is Weighting.EXAMPLES:
            raise UsageError(
                f'Expected "{records.NUM_EXAMPLES}" in the MetricRecord of the Flower app\'s '
                'reply, got none. Add it, or set weighting = "uniform".'
            )
        return _update(records.from_arrays(found[0], params), examples or 0, metrics, task)

    def evaluate(self, params: Params, task: Task) -> tuple[int, Metrics]:
        """Evaluate by the app, or call its query function.

        Raises:
            UsageError: the app's reply is invalid.
        """
        reply = self._ask(params, task, Kind.EVALUATE)
        if self._is_legacy:
            return legacy.evaluated(reply)
        num_examples, metrics = records.metrics_of(reply.metric_records)
        return num_examples or 0, metrics

    def _ask(self, params: Params, task: Task, kind: Kind) -> RecordDict:
        """Send the app a message; return its reply's content."""
        check_scales(task.local.adapters)
        config = self._config(task)
        message_type = _message_type(kind, config)
        for setting, *_ in MESSAGE_TYPES.values():
            config.pop(setting, None)
        content = self._content(params, {**config, "server-round": task.training_round}, kind)
        return _checked(self._answer(Instruction(task, message_type, config, content))).content

    def _content(self, params: Params, values: dict[str, Any], kind: Kind) -> RecordDict:
        if not self._is_legacy:
            return RecordDict({"arrays": records.to_arrays(params), "config": ConfigRecord(values)})
        records.check_listable(params)
        arrays = [params[name] for name in records.in_order(params)]
        return legacy.instructions(kind is Kind.TRAIN, arrays, values)

    def _config(self, task: Task) -> dict[str, Any]:
        """The app's config: its defaults, overridden by the task's settings, then by the run's."""
        settings = task.settings
        asked: dict[str, Any] = {"learning-rate": settings.learning_rate}
        asked["lr"] = settings.learning_rate
        if settings.epochs is not None:
            asked["local-epochs"] = settings.epochs
        if settings.steps is not None:
            asked["local-steps"] = settings.steps
        if settings.batch_size:
            asked["batch-size"] = settings.batch_size
        return {**self._defaults, **asked, **task.config}


class FlowerClient(MessageClient):
    """A client of a Flower app; `fedloom.client.flower.flower_client` makes one."""

    def __init__(
        self,
        app: Any,
        state_dir: Path,
        *,
        node_config: Mapping[str, Any],
        defaults: Mapping[str, Any],
    ) -> None:
        if not isinstance(app, ClientApp):
            raise UsageError(
                f"Expected a flwr.clientapp.ClientApp, got a {type(app).__name__}. Wrap a "
                "NumPyClient by ClientApp(client_fn=...)."
            )
        # The only indication of a client_fn.
        super().__init__(defaults, is_legacy=app._call is not None)  # noqa: SLF001
        self._app = app
        self._contexts = Contexts(state_dir, {n: _parsed(v) for n, v in node_config.items()})

    def _has(self, *kinds: str) -> bool:
        names = self._app._registered_funcs  # noqa: SLF001 - the app has no public list of them
        return self._is_legacy or any(name.partition(".")[0] in kinds for name in names)

    def can_train(self) -> bool:
        """Whether the app has a function for training."""
        return self._has("train")

    def can_evaluate(self) -> bool:
        """Whether the app has a function for evaluation, or for queries."""
        return self._has("evaluate", "query")

    def answer(self, message: bytes, task: Task) -> bytes:
        """Pass a message of a `ServerApp` to the app.

        Raises:
            UsageError: the app's reply is no message, or an error.
        """
        asked = message_from_proto(Written.FromString(message))
        config = {**self._defaults, **task.config}
        reply = _checked(self._call(asked, task, (task.round, 0), config))
        written: bytes = message_to_proto(reply).SerializeToString()
        return written

    def _answer(self, instruction: Instruction) -> Message:
        task = instruction.task
        step = (task.round, int(instruction.message_type.partition(".")[0] == "train"))
        asked = instruction.message(number_of(task.run), number_of(task.client), time.time())
        return self._call(asked, task, step, instruction.config)

    def _call(self, asked: Message, task: Task, step: Step, config: Mapping[str, Any]) -> Message:
        """Run the app; keep its context."""
        context = self._contexts.load(task.run, task.client, step, dict(config))
        TaskIdentity.task_id = task.round
        TaskIdentity.run_id, TaskIdentity.node_id = context.run_id, context.node_id
        reply = self._app(asked, context)
        if isinstance(reply, Message) and not reply.has_error():
            self._contexts.save(task.run, step, context.state)
        return reply


def _checked(reply: Any) -> Message:
    """An app's reply.

    Raises:
        UsageError: it is no message, or an error.
    """
    if not isinstance(reply, Message):
        raise UsageError(f"Expected a Message from the Flower app, got a {type(reply).__name__}.")
    if reply.has_error():
        raise UsageError(
            f"The Flower app answered with error {reply.error.code}: {reply.error.reason}"
        )
    return reply


def _update(new: Params, num_examples: int, metrics: dict[str, float], task: Task) -> Update:
    weight = metrics.get("weight") if task.weighting is Weighting.CLIENT else None
    return Update(new, num_examples, metrics, weight)


def _message_type(kind: Kind, config: Mapping[str, Any]) -> str:
    """The type of message that selects the app's function, such as `train` or `evaluate.fast`."""
    setting, default, kinds = MESSAGE_TYPES[kind]
    found = str(config.get(setting, default))
    if found.partition(".")[0] not in kinds:
        raise UsageError(
            f"Expected config.{setting} to begin with {' or '.join(kinds)}, got {found!r}."
        )
    return found


def _refuse(task: Task) -> None:
    """Refuse settings that Flower apps do not support."""
    if task.rule.name != "plain":
        raise UsageError(
            f"Flower apps support only the client rule plain, got {task.rule.name}. Run with "
            "another strategy or rule."
        )
    refuse_module_settings(task)
    if task.settings.clip_norm is not None:
        raise UsageError(
            f"Flower apps do not support train.clip_norm, got {task.settings.clip_norm:g}. Remove "
            "it."
        )


def _parsed(value: Any) -> Any:
    """A setting; text that is a JSON number or boolean is converted."""
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
    except ValueError:
        return value
    return found if isinstance(found, bool | int | float) else value
