"""Crash points: places where a test may kill the process, to prove that nothing is lost.

`crossing("name")` does nothing in production. With `FEDLOOM_KILL=name:3` in the environment, the
third crossing of that name ends the process by SIGKILL: no handler runs, no buffer is flushed, as
when the kernel or the power supply ends it. Every crossing in the code is between two steps
whose order the durability argument depends on.
"""

import os
import signal
from collections import Counter
from typing import Final, NoReturn

VARIABLE: Final = "FEDLOOM_KILL"

_crossed: Counter[str] = Counter()


def _armed() -> dict[str, int]:
    armed = {}
    for item in filter(None, os.environ.get(VARIABLE, "").split(",")):
        name, _, count = item.partition(":")
        armed[name] = int(count or 1)
    return armed


_ARMED: Final = _armed()


def crossing(name: str) -> None:
    """Pass a crash point; kill the process there if the environment names it."""
    if not _ARMED:
        return
    _crossed[name] += 1
    if _ARMED.get(name) == _crossed[name]:
        _die()


def _die() -> NoReturn:
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    raise AssertionError("SIGKILL returned")
