"""What local training asks of the processes it runs in: usually one, on a large site several.

Invariant: what is agreed and summed here is the same on every rank.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor, nn

from fedloom.client.api import Kind, Task

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RankTask:
    """A task as every rank has it.

    Attributes:
        kind: to train, or to evaluate, which a task to train may also ask for.
        task: what the server asks.
        names: of the tensors that the server sent.
        home: names of those that stay here.
    """

    kind: Kind
    task: Task
    names: frozenset[str] = frozenset()
    home: frozenset[str] = frozenset()


class Group(Protocol):
    """The processes that share a training."""

    @property
    def rank(self) -> int:
        """This one's number, from 0."""

    @property
    def size(self) -> int:
        """How many there are."""

    def led(self, job: RankTask, module: nn.Module) -> AbstractContextManager[None]:
        """Have all ranks do a job from the values that the module has here.

        Raises:
            UsageError: several processes cannot do it.
        """

    def together(self, call: Callable[[], T]) -> T:
        """Do something that speaks to no other rank; where one fails, all give up.

        Raises:
            UsageError: another rank failed.
        """

    def says(self, word: bool) -> bool:
        """What rank 0 says, on every rank; the others' words are not asked."""

    def shared(self, data: bytes) -> bytes:
        """What rank 0 has, on every rank."""

    def gathered(self, data: bytes) -> list[bytes]:
        """What each rank has, in their order, on every rank."""

    def sums(self, values: Sequence[float]) -> list[float]:
        """Numbers summed over the ranks, in float64."""

    def sum_(self, tensors: Mapping[str, Tensor]) -> None:
        """Sum tensors over the ranks, in place; of the same names everywhere."""


class Alone:
    """The one process of an ordinary client."""

    rank = 0
    size = 1

    @contextmanager
    def led(self, job: RankTask, module: nn.Module) -> Iterator[None]:  # noqa: ARG002 - nobody to tell
        """Nobody else has to be told."""
        yield

    def together(self, call: Callable[[], T]) -> T:
        """Do it."""
        return call()

    def says(self, word: bool) -> bool:
        """As it is."""
        return word

    def shared(self, data: bytes) -> bytes:
        """As they are."""
        return data

    def gathered(self, data: bytes) -> list[bytes]:
        """As they are."""
        return [data]

    def sums(self, values: Sequence[float]) -> list[float]:
        """As they are."""
        return list(values)

    def sum_(self, tensors: Mapping[str, Tensor]) -> None:
        """As they are."""


ALONE = Alone()
