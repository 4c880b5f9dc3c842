"""A watched call of an author's code: what it returned or raised, and the threads it used."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_EVERY_S = 0.002
_TASKS = Path("/proc/self/task")


@dataclass(slots=True)
class Probe:
    """What became of a call.

    Attributes:
        result: what it returned.
        error: what it raised.
        ended: whether it did either in time.
        threads: most that it used at a time, its own among them.
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
    """Call something in a thread of its own, as an agent does.

    Args:
        call: the author's code.
        stop: asks it to stop.
        stop_after_s: seconds after which it is asked.
        patience_s: seconds that it then has; None for as long as it takes. What has not ended goes
            on in its thread, which does not keep the process alive.
    """
    found, before = Probe(), _threads()

    def target() -> None:
        try:
            found.result = call()
        except BaseException as error:  # noqa: BLE001 - handed over whole
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
    """Threads of this process, also those that Python does not know."""
    try:
        return {task.name for task in _TASKS.iterdir()}
    except OSError:
        return {str(thread.ident) for thread in threading.enumerate()}
