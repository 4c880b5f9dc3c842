"""The files of a parent's tasks that a site passes on to its devices, in its model store.

Invariant: a file stays while a round of any run here may offer it, or a row of the ledger names it.
"""

import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from fedloom.protocol.task_description import DifferenceRef, TaskDescription
from fedloom.server.planning.state_note import StateNote
from fedloom.server.storage.context import StorageContext
from fedloom.server.storage.model_store import ModelStore


class PassedFiles:
    """Which runs of a parent need which files."""

    def __init__(self) -> None:
        self._of: dict[str, frozenset[str]] = {}
        self._lock = threading.Lock()  # never held while a file is copied

    def take(
        self, task: TaskDescription, find: Callable[[str], Path], models: ModelStore
    ) -> StateNote:
        """Copy the files of a task to the model store; they are needed until `drop`. Blocks.

        Args:
            task: the parent's.
            find: returns where the agent has, or would have, a file.
            models: of the server.

        Returns:
            The state that the site's round has: the files beside its model, the differences to it
            that are here, and what the parent's strategy asks of devices.
        """
        files = {file.digest for file in (task.model, task.received) if file is not None}
        offered = {step.file.digest for step in task.differences}
        steps: tuple[DifferenceRef, ...] = ()
        with self._lock:  # from now on none of them is removed
            before = self._of.get(task.run, frozenset())
            self._of[task.run] = before | files | offered
        for digest in files:
            if not models.hold(digest):
                models.add(find(digest))
        for step in reversed(task.differences):
            if not _take(step.file.digest, find, models):
                break  # the agent had a later model, or loaded it whole
            steps = (step, *steps)
        unused = offered - {step.file.digest for step in steps} - files - before
        with self._lock:
            self._of[task.run] = self._of.get(task.run, frozenset()) - unused
        return StateNote(
            sent=task.received,
            config=dict(task.config),
            held=task.model if steps else None,
            differences=steps,
        )

    async def drop(self, run: str, keep: Collection[str], storage: StorageContext) -> None:
        """Remove the files of a run but `keep`, where no other run and no row needs them."""
        if old := await storage.in_disk(self._replace, run, frozenset(keep)):
            rows = await storage.in_ledger(storage.ledger.unmarked)
            named = {name for digest, note in rows for name in (digest, *_digests(note))}
            await storage.in_disk(self._remove, old - named, storage.models)

    def _replace(self, run: str, keep: frozenset[str]) -> frozenset[str]:
        """Note what a run needs now; returns what it needed before, and no longer."""
        with self._lock:
            old = self._of.pop(run, frozenset()) - keep
            if keep:
                self._of[run] = keep
        return old

    def _remove(self, digests: Iterable[str], models: ModelStore) -> None:
        with self._lock:
            for digest in digests:
                if not any(digest in needed for needed in self._of.values()):
                    models.discard(digest, 0.0)

    def restore(self, run: str, digests: Iterable[str]) -> None:
        """Note the files of a run that is continued after a restart."""
        with self._lock:
            self._of[run] = frozenset(digests)


def _take(digest: str, find: Callable[[str], Path], models: ModelStore) -> bool:
    """Have a file in the store; False if the agent has none."""
    if models.hold(digest):
        return True
    there = find(digest).exists()
    if there:
        models.add(find(digest))
    return there


def _digests(note: str | None) -> frozenset[str]:
    return StateNote.read(note).digests
