"""A Flower `ClientApp` as a `Client`: a task becomes a message, and the reply becomes an update.

What Flower's own runtime does for an app is done here: one context per client and run, kept between
rounds; the process's `TaskIdentity`; and the two forms of messages, records for functions that are
registered by `@app.train()` and the like, and the older ones for `client_fn`. The app applies its
mods itself.

Invariants: what comes back is checked against the model before it is an update; a task that is done
again finds the context that it found the first time.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from flwr.app import Message, Metadata, RecordDict
from flwr.app.constants import DEFAULT_TTL
from flwr.app.message.message import make_message
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from fedloom.client.api import Client, Kind, Metrics, Params, Task, Update, Weighting
from fedloom.client.flower import legacy, records
from fedloom.client.flower.contexts import Contexts
from fedloom.client.numpy import refuse_module_settings
from fedloom.protocol.errors import UsageError

SERVER: Final = 1
"""The node that messages come from, as in Flower."""
MESSAGE_TYPES: Final = {
    Kind.TRAIN: ("flower-train", "train", ("train",)),
    Kind.EVALUATE: ("flower-evaluate", "evaluate", ("evaluate", "query")),
}
"""By kind of task: the run's setting that names the app's function, its default, what it may be."""


class FlowerClient(Client):
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
                f"Expected a flwr.clientapp.ClientApp, got a {type(app).__name__}. A NumPyClient "
                "becomes one by ClientApp(client_fn=...)."
            )
        self._app = app
        self._contexts = Contexts(state_dir, {n: _parsed(v) for n, v in node_config.items()})
        self._defaults = dict(defaults)

    @property
    def _is_legacy(self) -> bool:
        return self._app._call is not None  # noqa: SLF001 - the only sign of a client_fn

    def _has(self, *kinds: str) -> bool:
        names = self._app._registered_funcs  # noqa: SLF001 - the app has no other list of them
        return self._is_legacy or any(name.partition(".")[0] in kinds for name in names)

    def can_train(self) -> bool:
        """Whether the app has a function for training."""
        return self._has("train")

    def can_evaluate(self) -> bool:
        """Whether the app has a function for evaluation, or for queries."""
        return self._has("evaluate", "query")

    def train(self, params: Params, task: Task) -> Update:
        """Train by the app.

        Raises:
            UsageError: the app's reply is none, or the run asks for what no app for Flower does.
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
        told, metrics = records.metrics_of(reply.metric_records)
        if told is None and task.weighting is Weighting.EXAMPLES:
            raise UsageError(
                f'Expected "{records.NUM_EXAMPLES}" in the MetricRecord of the Flower app\'s '
                'reply, as the run weights by it, got none. Or set weighting = "uniform".'
            )
        return _update(records.from_arrays(found[0], params), told or 0, metrics, task)

    def evaluate(self, params: Params, task: Task) -> tuple[int, Metrics]:
        """Evaluate by the app, or ask its query function.

        Raises:
            UsageError: the app's reply is none.
        """
        reply = self._ask(params, task, Kind.EVALUATE)
        if self._is_legacy:
            return legacy.evaluated(reply)
        told, metrics = records.metrics_of(reply.metric_records)
        return told or 0, metrics

    def _ask(self, params: Params, task: Task, kind: Kind) -> RecordDict:
        """Let the app answer a message; keep what it left in its context."""
        config = self._config(task)
        message_type = _message_type(kind, config)
        for setting, *_ in MESSAGE_TYPES.values():
            config.pop(setting, None)
        step = (task.round, int(kind is Kind.TRAIN))
        context = self._contexts.load(task.run, task.client, step, dict(config))
        told = {**config, "server-round": task.round}
        if self._is_legacy:
            records.check_listable(params)
            names = records.in_order(params)
            arrays = [params[name] for name in names]
            content = legacy.instructions(kind is Kind.TRAIN, arrays, told)
        else:
            content = RecordDict(
                {"arrays": records.to_arrays(params), "config": records.config_of(told)}
            )
        TaskIdentity.task_id = task.round
        TaskIdentity.run_id, TaskIdentity.node_id = context.run_id, context.node_id
        asked = make_message(_metadata(context, task, message_type), content)
        reply = self._app(asked, context)
        if not isinstance(reply, Message):
            raise UsageError(
                f"Expected a Message from the Flower app, got a {type(reply).__name__}."
            )
        if reply.has_error():
            raise UsageError(
                f"The Flower app answered with error {reply.error.code}: {reply.error.reason}"
            )
        self._contexts.save(task.run, step, context.state)
        return reply.content

    def _config(self, task: Task) -> dict[str, Any]:
        """What the app is told: its own defaults, under the task's settings, under the run's."""
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


def _update(new: Params, num_examples: int, metrics: dict[str, float], task: Task) -> Update:
    weight = metrics.get("weight") if task.weighting is Weighting.CLIENT else None
    return Update(new, num_examples, metrics, weight)


def _message_type(kind: Kind, config: Mapping[str, Any]) -> str:
    """What the app's function is called by, `train` or `evaluate.fast`.

    Raises:
        UsageError: the run names one of another kind.
    """
    setting, default, kinds = MESSAGE_TYPES[kind]
    found = str(config.get(setting, default))
    if found.partition(".")[0] not in kinds:
        raise UsageError(
            f"Expected config.{setting} to begin with {' or '.join(kinds)}, got {found!r}."
        )
    return found


def _metadata(context: Any, task: Task, message_type: str) -> Metadata:
    return Metadata(
        run_id=context.run_id,
        message_id=f"{task.run}.{task.round}.{message_type}",
        src_node_id=SERVER,
        dst_node_id=context.node_id,
        reply_to_message_id="",
        group_id=str(task.round),
        created_at=time.time(),
        ttl=DEFAULT_TTL,
        message_type=message_type,
    )


def _refuse(task: Task) -> None:
    """Refuse what an app that trains by itself cannot follow.

    Raises:
        UsageError: the run asks for it.
    """
    if task.rule.name != "plain":
        raise UsageError(
            f"Expected the client rule plain with a Flower app, which trains by itself, got "
            f"{task.rule.name}. Run with another strategy or rule."
        )
    refuse_module_settings(task)
    if task.settings.clip_norm is not None:
        raise UsageError(
            "Expected no train.clip_norm with a Flower app, which trains by itself, got "
            f"{task.settings.clip_norm:g}. Leave it out."
        )


def _parsed(value: Any) -> Any:
    """A setting that may be written as text: a number or a truth where it reads like one."""
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
    except ValueError:
        return value
    return found if isinstance(found, bool | int | float) else value
