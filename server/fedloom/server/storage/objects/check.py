"""Tries what the server needs of an object store: `fedloom store check`, and each start."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fedloom.server.storage.objects.interface import (
    MissingObjectError,
    Objects,
    StoreFaultError,
    unique,
)

FOLDER = "check"
_DATA = bytes(range(256)) * 16

HELP = {
    "PUT": "Check that the bucket exists, that `endpoint` and `region` are right, and that the "
    "credentials in the server's environment may write objects (s3:PutObject).",
    "GET after PUT": "The credentials need s3:GetObject; and a store that does not return what it "
    "has just acknowledged, such as a replica, loses updates: use its primary.",
    "range GET": "Use a store that serves ranges of bytes.",
    "LIST": "The credentials need s3:ListBucket.",
    "DELETE": "The credentials need s3:DeleteObject.",
}
"""What to do about a step that fails."""


@dataclass(frozen=True, slots=True)
class CheckedStep:
    """A step of the check.

    Attributes:
        name: of the step, a key of `HELP`.
        error: what went wrong; empty for nothing.
    """

    name: str
    error: str = ""

    @property
    def advice(self) -> str:
        """What to do about the error."""
        return HELP[self.name] if self.error else ""


def check_store(objects: Objects) -> list[CheckedStep]:
    """Try each kind of request with a small object of its own; ends at the first that fails."""
    name = f"{FOLDER}/{unique('object')}"
    done = []
    for step, attempt in _steps(objects, name):
        try:
            error = attempt()
        except StoreFaultError as fault:
            error = str(fault)
        done.append(CheckedStep(step, error))
        if error:
            break
    return done


def _steps(objects: Objects, name: str) -> Iterator[tuple[str, Callable[[], str]]]:
    def put() -> str:
        objects.put(name, _DATA)
        return ""

    def get() -> str:
        return "" if objects.get(name) == _DATA else "it returns other bytes than were written"

    def get_range() -> str:
        same = objects.get_range(name, 100, 1000) == _DATA[100:1100]
        return "" if same else "it returns other bytes than the range asked for"

    def listed() -> str:
        for _ in objects.list(FOLDER):  # it may lag, so a listing without the object is right
            pass
        return ""

    def delete() -> str:
        objects.delete([name])
        try:
            objects.get(name)
        except MissingObjectError:
            return ""
        return "the object is still there"

    yield from (
        ("PUT", put), ("GET after PUT", get), ("range GET", get_range), ("LIST", listed),
        ("DELETE", delete),
    )  # fmt: skip
