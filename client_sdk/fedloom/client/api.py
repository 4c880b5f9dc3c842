"""What a client's author writes against: `Client`, the `Task` it gets, the `Update` it returns."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedloom.client import typed_config
from fedloom.client.training.checkpoints import Checkpoints
from fedloom.client.training.client_rule import RuleContext
from fedloom.client.training.progress import Reporter, TrainingProgress
from fedloom.protocol.errors import UsageError
from fedloom.strategies import ClientRule, RoundSettings

Params: TypeAlias = dict[str, NDArray[Any]]
Metrics: TypeAlias = Mapping[str, float]
Scalar: TypeAlias = bool | int | float | str
T = TypeVar("T")


class Kind(StrEnum):
    """What a task is for."""

    TRAIN = "train"
    EVALUATE = "evaluate"


class Weighting(StrEnum):
    """Where the weight of an update comes from."""

    EXAMPLES = "examples"
    CLIENT = "client"
    UNIFORM = "uniform"


@dataclass(slots=True)
class _Limit:
    """When a training is to end, by the monotonic clock; one for all copies of its task."""

    ends_at: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the server asks of a client in a round.

    Attributes:
        run: id of the run.
        round: number of the round in it, from 1.
        kind: training or evaluation.
        client: this client's name.
        settings: epochs or steps, batch size (0: all in one batch), learning rate, and how to
            depart from training the whole model to the end.
        rule: changes local gradients, `gradient(grad, at)`; `plain` changes nothing.
        local: what the rule receives and remembers, and what it is told of the training.
        config: what the run's author passes to the client's code.
        seed: for the client's randomness; the same whenever this task is offered to this client.
        deadline_s: seconds left to report when the task was offered.
        weighting: with `CLIENT`, `train` must return an `Update` that has a weight.
        checkpoints: where a training that is cut short is kept; see `checkpoint` and `resume`.
    """

    run: str
    round: int
    kind: Kind
    settings: RoundSettings
    rule: ClientRule
    config: Mapping[str, Scalar]
    seed: int
    deadline_s: float
    weighting: Weighting
    client: str = ""
    local: RuleContext = field(default_factory=RuleContext, repr=False, compare=False)
    checkpoints: Checkpoints = field(default_factory=Checkpoints, repr=False, compare=False)
    _limit: _Limit = field(default_factory=_Limit, repr=False, compare=False)
    _stopping: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)
    _reporter: Reporter = field(default_factory=Reporter, repr=False, compare=False)

    def config_as(self, kind: type[T]) -> T:
        """What the run's author passes to the client's code, as a dataclass of yours.

        Args:
            kind: a dataclass with fields of bool, int, float, str, `Literal` or `| None`. Fields
                with a default may be left out of the run's `[config]`.

        Raises:
            UsageError: a name that it lacks, one that is missing, or a value of another type.
        """
        return typed_config.typed(self.config, kind)

    def progress(self, done: float | tuple[float, float], loss: object = None) -> None:
        """Say how far the training is, for the operator to see; it costs next to nothing.

        At most one message a second leaves the device, and none without a connection. Where the
        run is private, the loss never does.

        Args:
            done: a fraction from 0 to 1, or `(done, of)`, such as steps.
            loss: of late; anything that `float` takes.
        """
        self._reporter.say(done, loss)

    @contextmanager
    def reporting(self, heard: Callable[[TrainingProgress], None]) -> Iterator[None]:
        """For agents: hear of progress, in the training's thread, at most once a second."""
        self._reporter.heard = heard
        try:
            yield
        finally:
            self._reporter.heard = None

    def tensors(self, names: Iterable[str]) -> frozenset[str]:
        """Those of the model's tensors that this task trains, also those that stay here.

        Raises:
            UsageError: the run asks for none of the model's.
        """
        kept = self.local.personal.kept(names := list(names))
        try:
            return kept | self.settings.tensors(set(names) - kept, self.seed)
        except ValueError as error:
            raise UsageError(str(error)) from None

    def width(self) -> float:
        """The share of each hidden dimension that this client trains, and sends as `SliceOf`."""
        return self.settings.width(self.client)

    def should_stop(self) -> bool:
        """Whether to stop soon: keep a `checkpoint` if you can, and return what you have.

        Where the round no longer wants it, nothing of that is sent.
        """
        return self.dropped or self.out_of_time

    @property
    def dropped(self) -> bool:
        """Whether what the training returns is sent no more."""
        return self._stopping.is_set()

    @property
    def out_of_time(self) -> bool:
        """Whether the training takes longer than this device allows; what there is counts."""
        return time.monotonic() >= self._limit.ends_at

    def limit(self, seconds: float) -> None:
        """For agents: give the training so much time from now on."""
        self._limit.ends_at = time.monotonic() + seconds

    def stop(self) -> None:
        """Ask the training code to stop; what it returns is dropped."""
        self._stopping.set()

    def checkpoint(self, write: Callable[[BinaryIO], object], *, always: bool = False) -> bool:
        """Keep the state of the training, to go on from it after a kill or a reboot.

        Call it as often as you like, as between epochs: it writes only when the last one is long
        enough ago, or the training is to stop.

            for epoch in range(epoch, epochs):
                ...
                task.checkpoint(lambda file: np.savez(file, epoch=epoch + 1, **params))

        Args:
            write: writes the state to a file.
            always: write in any case.

        Returns:
            Whether it was written: a full disk, or `budgets.disk_mb`, fails no training.
        """
        if not (always or self.dropped or self.checkpoints.due()):
            return False
        return self.checkpoints.save(write)

    def resume(self) -> Path | None:
        """Where the state lies that was kept when this very task was cut short; None for nowhere.

        It is yours to judge whether it still fits your data.
        """
        return self.checkpoints.saved()


@dataclass(frozen=True, slots=True)
class SliceOf:
    """A box of a tensor.

    Attributes:
        values: in the shape of the box.
        ranges: one half-open `(start, stop)` per dimension of the tensor.
    """

    values: NDArray[Any]
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class MaskOf:
    """Some coordinates of a tensor.

    Attributes:
        values: in the shape of the tensor; only those under the mask are sent.
        mask: bool, in the shape of the tensor.
    """

    values: NDArray[Any]
    mask: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Update:
    """What training gave.

    Attributes:
        params: new values, for all tensors or some, whole (an array) or in part.
        num_examples: trained on.
        metrics: whatever should be averaged over the clients.
        weight: of this update, where the run weights by client.
    """

    params: Mapping[str, "NDArray[Any] | SliceOf | MaskOf"]
    num_examples: int
    metrics: Metrics = field(default_factory=dict)
    weight: float | None = None


Trained: TypeAlias = (
    "Update | tuple[Mapping[str, NDArray[Any] | SliceOf | MaskOf], int, Mapping[str, float]]"
)


class Client:
    """Subclass this. Both methods run in a thread of their own, never both at once."""

    def train(self, params: Params, task: Task) -> Trained:
        """Train on local data.

        Args:
            params: the model as the server sent it; private copies, change them as you like.
            task: how to train.

        Returns:
            New parameters (all or some of them), the number of examples and metrics; or an
            `Update`.
        """
        raise NotImplementedError

    def evaluate(self, params: Params, task: Task) -> tuple[int, Metrics]:
        """Evaluate on local data; leave it out where there is nothing to evaluate on.

        Returns:
            The number of examples and metrics.
        """
        raise NotImplementedError

    def initial(self) -> Params | None:
        """Model that a run may begin with, for `fedloom model init`; None where there is none."""
        return None

    def can_train(self) -> bool:
        """Whether `train` is there; a client without it declines what is to be trained."""
        return type(self).train is not Client.train

    def can_evaluate(self) -> bool:
        """Whether `evaluate` is there."""
        return type(self).evaluate is not Client.evaluate
