"""What the doctor found: one line for each thing looked at, and what to do about it."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing that was looked at.

    Attributes:
        check: which, such as `clock`.
        level: `ok`; `warn`, what costs rounds now or later; `fail`, what keeps this device from
            working at all; `skip`, what could not be looked at.
        said: what was found.
        mend: what to do about it; empty where there is nothing to do.
    """

    check: str
    level: Level
    said: str
    mend: str = ""


def ok(check: str, said: str) -> CheckResult:
    """All is well."""
    return CheckResult(check, "ok", said)


def warn(check: str, said: str, mend: str) -> CheckResult:
    """It works, but not always or not for ever."""
    return CheckResult(check, "warn", said, mend)


def fail(check: str, said: str, mend: str) -> CheckResult:
    """It does not work."""
    return CheckResult(check, "fail", said, mend)


def skip(check: str, said: str, mend: str = "") -> CheckResult:
    """It was not looked at, and why."""
    return CheckResult(check, "skip", said, mend)
