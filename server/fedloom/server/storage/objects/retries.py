"""Repeats requests to an object store that fail, with growing waits, and logs each failure."""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

from fedloom.server.storage.objects.interface import (
    MissingObjectError,
    Objects,
    StoredObject,
    StoreFaultError,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

WAITS_S: Final = (0.2, 0.4, 0.8, 1.6, 3.2)
"""Seconds before each further attempt, with half as much jitter. Six attempts all fail once in a
million requests where one in ten does."""


class Observe(Protocol):
    """Is told of each request: its method, its seconds, and whether it failed."""

    def __call__(self, request: str, seconds: float, *, failed: bool) -> None:
        """A request is over."""


class RetriedObjects:
    """An object store whose failed requests are repeated; see `Objects`.

    A missing object is not asked for again.

    Attributes:
        observe: is told of each request; None for nobody.
    """

    def __init__(self, objects: Objects, waits_s: Sequence[float] = WAITS_S) -> None:
        self._objects = objects
        self._waits_s = waits_s
        self._closing = threading.Event()
        self.observe: Observe | None = None

    def close(self) -> None:
        """End all waits: requests that fail from now on are not repeated."""
        self._closing.set()

    def put(self, name: str, data: bytes) -> None:
        """See `Objects.put`."""
        self._try("put", lambda: self._objects.put(name, data))

    def get(self, name: str) -> bytes:
        """See `Objects.get`."""
        return self._try("get", lambda: self._objects.get(name))

    def get_range(self, name: str, start: int, size: int) -> bytes:
        """See `Objects.get_range`."""
        return self._try("get", lambda: self._objects.get_range(name, start, size))

    def delete(self, names: Sequence[str]) -> None:
        """See `Objects.delete`."""
        self._try("delete", lambda: self._objects.delete(names))

    def list(self, folder: str) -> Iterator[StoredObject]:
        """See `Objects.list`; the whole listing is read before the first is yielded."""
        yield from self._try("list", lambda: [*self._objects.list(folder)])

    def _try(self, name: str, request: Callable[[], T]) -> T:
        for wait_s in self._waits_s:
            try:
                return self._once(name, request)
            except MissingObjectError:
                raise
            except StoreFaultError as error:
                wait_s *= 1 + random.random() / 2  # noqa: S311, PLW2901 - only spreads the load
                log.warning("object store: %s; next try in %.1f s", error, wait_s)
                if self._closing.wait(wait_s):
                    raise
        return self._once(name, request)

    def _once(self, name: str, request: Callable[[], T]) -> T:
        begun, failed = time.perf_counter(), True
        try:
            found = request()
            failed = False
        except MissingObjectError:
            failed = False
            raise
        finally:
            if self.observe is not None:
                self.observe(name, time.perf_counter() - begun, failed=failed)
        return found
