"""The budget gate: declines an offer that exceeds the device's memory or disk."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path

from fedloom.client.budgets import machine
from fedloom.client.budgets.settings import Budgets
from fedloom.client.state.store import ClientStore
from fedloom.protocol.task_message import rule_of
from fedloom.protocol.updates.compression import scheme_of
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import Personal, Plain
from fedloom.strategies.personal.settings import NAMES

MB = 1e6
CHECKPOINT_MODELS = 5


class BudgetGate:
    """Declines offers that do not fit into this device's memory or disk.

    Args:
        budgets: of this device.
        store: its oldest files are deleted to free space.
        available: returns free memory, bytes.
        resident: returns the memory in use by the agent, bytes.
        free: returns free disk space of a folder, bytes.
    """

    def __init__(
        self,
        budgets: Budgets,
        store: ClientStore,
        *,
        available: Callable[[], float] = machine.available_bytes,
        resident: Callable[[], float] = machine.resident_bytes,
        free: Callable[[Path], float] = lambda folder: shutil.disk_usage(folder).free,
    ) -> None:
        self._budgets, self._store = budgets, store
        self._available, self._resident, self._free = available, resident, free

    def objection(self, offer: fleet_pb2.Task) -> str | None:
        """The reason to decline: what the offer needs and what is free; None to accept."""
        return self._of_memory(offer) or self._of_disk(offer)

    def _of_memory(self, offer: fleet_pb2.Task) -> str | None:
        budgets = self._budgets
        size = offer.model.size_bytes + offer.received.size_bytes
        needs = budgets.memory_factor * size
        times = f"{budgets.memory_factor:g} times the model of {_mb(size)}"
        if needs and needs > (there := self._available()):
            return f"The task needs {times}; only {_mb(there)} of memory are free."
        if budgets.memory_mb is None:
            return None
        most = budgets.memory_mb * MB
        if needs + (held := self._resident()) > most:
            return (
                f"The task needs {times}, in addition to {_mb(held)} in use; memory_mb is "
                f"{_mb(most)}."
            )
        return None

    def _of_disk(self, offer: fleet_pb2.Task) -> str | None:
        parts = [offer.model, offer.received, *(step.difference for step in offer.differences)]
        sizes = {part.digest: part.size_bytes for part in parts if part.digest}
        missing = sum(size for d, size in sizes.items() if not self._store.model_path(d).exists())
        needs = missing + offer.model.size_bytes * written(offer)
        quota = self._budgets.disk_mb
        if quota is not None:
            key = f"{offer.key.run}.{offer.key.round}."
            held = self._store.evict(int(quota * MB - needs), set(sizes), key)
            if held + needs > quota * MB:
                return (
                    f"The task needs {_mb(needs)} on the disk, in addition to {_mb(held)} in use; "
                    f"disk_mb is {quota:g}."
                )
        if needs > (free := self._free(self._store.directory)):
            return f"The task needs {_mb(needs)}; only {_mb(free)} are free on the disk."
        return None


def room_beside(budgets: Budgets, store: ClientStore, offer: fleet_pb2.Task) -> float:
    """Bytes that a checkpoint of a task may take, after space is reserved for its update.

    Old files are deleted to fit a checkpoint of `CHECKPOINT_MODELS` models: enough for a model and
    an optimizer with two moments.
    """
    if budgets.disk_mb is None:
        return math.inf
    size, quota = offer.model.size_bytes, budgets.disk_mb * MB
    digests = {offer.model.digest, offer.received.digest}
    key = f"{offer.key.run}.{offer.key.round}."
    held = store.evict(int(quota - CHECKPOINT_MODELS * size), digests, key)
    return quota - held - size * written(offer)


def written(offer: fleet_pb2.Task) -> int:
    """Disk space that a task needs at its end, at most, in sizes of the model.

    Counted are the groups of its update, the groups that a rule computes (in scratch space), and
    memories (in scratch space and then in a file).
    """
    scheme = scheme_of(offer.compression)
    rule = rule_of(offer.rule) if offer.rule.name else Plain()
    groups = 1 if rule.picks else len(rule.groups)
    made = 0 if rule.is_elementary or rule.picks else groups
    errors = groups if scheme is not None and scheme.remembers else 0
    own = Personal(name=offer.personal.name or NAMES[0]).own_model
    return groups + made + 2 * (len(rule.remembers) + errors) + (own is not None)


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / MB:,.1f} MB"
