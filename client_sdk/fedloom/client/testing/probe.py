"""A monitored call of the author's code: its result or error, and its threads."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

OnStep: TypeAlias = Callable[[str, float | None], None]
"""Called with what begins, and with the share of it that is done, if that is known."""

_EVERY_S = 0.002
_TASKS = Path("/proc/self/task")


def nothing(step: str, done: float | None) -> None:
    """An `OnStep` that shows nothing."""


@dataclass(slots=True)
class Probe:
    """The outcome of a call.

    Attributes:
        result: the returned value.
        error: the exception.
        ended: whether it ended in time.
        threads: maximum number of its threads at a time.
    """

    result: Any = None
    error: BaseException | None = None
    ended: bool = False
    threads: int = 1


def probe(
    call: Callable[[], Any],
    *,
    stop: Callable[[], None] | None = None,
    stop_after_s: float = 0.0,
    patience_s: float | None = None,
) -> Probe:
    """Call a function in a separate thread, like an agent.

    Args:
        call: the author's code.
        stop: requests a stop.
        stop_after_s: seconds until the stop request.
        patience_s: seconds after the request until the call is left alone in its daemon thread;
            None for no limit.
    """
    found, before = Probe(), _threads()

    def target() -> None:
        try:
            found.result = call()
        except BaseException as error:  # noqa: BLE001 - returned to the caller
            found.error = error
        found.ended = True

    thread = threading.Thread(target=target, name="training", daemon=True)
    thread.start()
    begun, asked_at = time.monotonic(), None
    while thread.is_alive():
        found.threads = max(found.threads, len(_threads() - before))
        thread.join(_EVERY_S)
        now = time.monotonic()
        if stop is not None and asked_at is None and now - begun >= stop_after_s:
            stop()
            asked_at = now
        if patience_s is not None and asked_at is not None and now - asked_at > patience_s:
            break
    return found


def _threads() -> set[str]:
    """Threads of this process, also those outside Python."""
    try:
        return {task.name for task in _TASKS.iterdir()}
    except OSError:
        return {str(thread.ident) for thread in threading.enumerate()}
