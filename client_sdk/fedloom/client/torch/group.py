"""The processes of a local training: usually one, on a site several.

Invariant: every rank gets the same flags, bytes and sums.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor, nn

from fedloom.client.api import Task
from fedloom.protocol.task_kind import Kind

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RankTask:
    """A task as every rank gets it.

    Attributes:
        kind: train or evaluate; a training task may also evaluate.
        task: from the server.
        names: of the tensors that the server sent.
        home: names of the local tensors.
    """

    kind: Kind
    task: Task
    names: frozenset[str] = frozenset()
    home: frozenset[str] = frozenset()


class Group(Protocol):
    """The processes that train together."""

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""

    @property
    def size(self) -> int:
        """Number of processes."""

    def led(self, job: RankTask, module: nn.Module) -> AbstractContextManager[None]:
        """Run a job on all ranks, from the module's values on this one.

        Raises:
            UsageError: several processes cannot run it.
        """

    def together(self, call: Callable[[], T]) -> T:
        """Call a function that does not communicate; if it fails on one rank, all fail.

        Raises:
            UsageError: another rank failed.
        """

    def says(self, flag: bool) -> bool:
        """The flag of rank 0, on every rank."""

    def shared(self, data: bytes) -> bytes:
        """The bytes of rank 0, on every rank."""

    def gathered(self, data: bytes) -> list[bytes]:
        """The bytes of each rank, by rank, on every rank."""

    def sums(self, values: Sequence[float]) -> list[float]:
        """Numbers summed over the ranks, in float64."""

    def sum_(self, tensors: Mapping[str, Tensor]) -> None:
        """Sum tensors over the ranks, in place; all ranks have the same names."""


class _Alone:
    """The only process of an ordinary client."""

    rank = 0
    size = 1

    @contextmanager
    def led(self, job: RankTask, module: nn.Module) -> Iterator[None]:  # noqa: ARG002 - no other rank
        yield

    def together(self, call: Callable[[], T]) -> T:
        return call()

    def says(self, flag: bool) -> bool:
        return flag

    def shared(self, data: bytes) -> bytes:
        return data

    def gathered(self, data: bytes) -> list[bytes]:
        return [data]

    def sums(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def sum_(self, tensors: Mapping[str, Tensor]) -> None:
        pass


ALONE = _Alone()
