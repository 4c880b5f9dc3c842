"""The result of one check of the doctor, and what to do about it."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check.

    Attributes:
        check: name of the check, such as `clock`.
        level: `ok`; `warn`: the device misses rounds, now or later; `fail`: it cannot work;
            `skip`: not checked.
        said: what was found.
        mend: what to do; empty if nothing.
    """

    check: str
    level: Level
    said: str
    mend: str = ""


def ok(check: str, said: str) -> CheckResult:
    """A check that passed."""
    return CheckResult(check, "ok", said)


def warn(check: str, said: str, mend: str) -> CheckResult:
    """A check that found a problem which does not stop the device."""
    return CheckResult(check, "warn", said, mend)


def fail(check: str, said: str, mend: str) -> CheckResult:
    """A check that failed."""
    return CheckResult(check, "fail", said, mend)


def skip(check: str, said: str, mend: str = "") -> CheckResult:
    """A check that was skipped, with the reason."""
    return CheckResult(check, "skip", said, mend)
