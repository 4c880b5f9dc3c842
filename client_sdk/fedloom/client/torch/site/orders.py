"""The encoding of a job from rank 0 to the other ranks: JSON, followed by arrays; no pickle."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.client.api import Task, Weighting
from fedloom.client.torch.group import RankTask
from fedloom.client.training.client_rule import RuleContext
from fedloom.protocol.task_kind import Kind
from fedloom.strategies import Adapters, Personal, RoundSettings, client_rule

STOP = "stop"
"""In place of an order: there are no more."""


@dataclass(frozen=True, slots=True)
class Order:
    """A job and its arrays.

    Attributes:
        job: the job.
        arrays: values that the client rule received and remembers, by "KIND/SLOT/TENSOR"; filled
            after decoding.
    """

    job: RankTask
    arrays: dict[str, NDArray[Any]]


def encode(job: RankTask) -> str:
    """Encode a job as JSON."""
    task = job.task
    return json.dumps(
        {
            "kind": job.kind,
            "names": sorted(job.names),
            "home": sorted(job.home),
            "task": {
                "run": task.run,
                "round": task.round,
                "training_round": task.training_round,
                "kind": task.kind,
                "client": task.client,
                "config": dict(task.config),
                "seed": task.seed,
                "deadline_s": task.deadline_s,
                "weighting": task.weighting,
            },
            "settings": asdict(task.settings),
            "rule": [task.rule.name, task.rule.settings()],
            "personal": asdict(task.local.personal),
            "adapters": asdict(task.local.adapters),
            "arrays": {n: [a.dtype.str, a.shape] for n, a in arrays_of(task).items()},
        }
    )


def decode(text: str) -> Order:
    """Decode a job, with empty arrays of the right shapes."""
    found = json.loads(text)
    fields = found["task"]
    arrays = {n: np.empty(shape, dtype) for n, (dtype, shape) in found["arrays"].items()}
    task = Task(
        **{**fields, "kind": Kind(fields["kind"]), "weighting": Weighting(fields["weighting"])},
        settings=RoundSettings(**_tuples(found["settings"])),
        rule=client_rule(found["rule"][0], found["rule"][1]),
        local=RuleContext(
            personal=Personal(**_tuples(found["personal"])),
            adapters=Adapters(**found["adapters"]),
            received=_slots(arrays, "received/"),
            memory=_slots(arrays, "memory/"),
        ),
    )
    job = RankTask(Kind(found["kind"]), task, frozenset(found["names"]), frozenset(found["home"]))
    return Order(job, arrays)


def arrays_of(task: Task) -> dict[str, NDArray[Any]]:
    """The rule's values on rank 0 that change gradients."""
    local, rule = task.local, task.rule
    wanted = (("received", rule.receives, local.received), ("memory", rule.remembers, local.memory))
    return {
        f"{kind}/{slot}/{tensor}": np.ascontiguousarray(array)
        for kind, slots, found in wanted
        for slot in slots
        for tensor, array in found.get(slot, {}).items()
    }


def _slots(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, dict[str, NDArray[Any]]]:
    slots: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        if name.startswith(prefix):
            slot, tensor = name.removeprefix(prefix).split("/", 1)
            slots.setdefault(slot, {})[tensor] = array
    return slots


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
