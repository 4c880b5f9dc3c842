"""Deletes objects in the background, so that no round waits for it.

What is not deleted because the store fails or the server is killed, a later sweep deletes: no row
of the ledger names it.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from fedloom.server.storage.objects.interface import Objects, StoreFaultError

log = logging.getLogger(__name__)

_AT_ONCE = 1000
"""Most objects in one request of S3."""


class Deletions:
    """One thread that deletes objects, in the order in which it is asked to."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="delete")

    def add(self, names: Sequence[str]) -> None:
        """Delete these objects, which no row of the ledger names any more."""
        self.add_found(lambda: names)

    def add_found(self, find: Callable[[], Sequence[str]]) -> None:
        """Delete the objects that a call returns, which is made in the thread."""
        self._thread.submit(self._delete, find)

    def _delete(self, find: Callable[[], Sequence[str]]) -> None:
        try:
            names = find()
            for start in range(0, len(names), _AT_ONCE):
                self._objects.delete(names[start : start + _AT_ONCE])
        except StoreFaultError as error:
            log.warning("object store: %s; the next sweep deletes what is left", error)
        except Exception:
            log.exception("objects could not be deleted; the next sweep deletes them")

    def close(self) -> None:
        """Delete what is left, then end the thread."""
        self._thread.shutdown(wait=True)
