"""The interface of training code: `Client`, the `Task` it receives, the `Update` it returns."""

import math
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
from fedloom.protocol.task_kind import Kind
from fedloom.strategies import ClientRule, RoundSettings

Params: TypeAlias = dict[str, NDArray[Any]]
Metrics: TypeAlias = Mapping[str, float]
Scalar: TypeAlias = bool | int | float | str
T = TypeVar("T")


class Weighting(StrEnum):
    """Source of an update's weight: its examples, the client's own number, or 1."""

    EXAMPLES = "examples"
    CLIENT = "client"
    UNIFORM = "uniform"


@dataclass(slots=True)
class _Stop:
    """Whether a training must end; shared by all copies of its task, and set by other threads.

    Attributes:
        ends_at: monotonic time at which it must.
        dropped: whether its result will be discarded.
    """

    ends_at: float = math.inf
    dropped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the server asks of a client in a round.

    Attributes:
        run: id of the run.
        round: number of the round in it, from 1; evaluation and abandoned rounds count, too.
        training_round: number of the training round, from 1, for schedules over a run; an
            evaluation has that of the last committed training. 0, as from an older server, becomes
            `round`.
        kind: training or evaluation.
        client: this client's name.
        settings: epochs or steps, batch size (0: all in one batch), learning rate, and which part
            of the model to train.
        rule: changes local gradients, `gradient(grad, at)`; `plain` changes nothing.
        local: what the rule receives and remembers, and the measured training, such as its steps.
        config: the run's `[config]`, for the client's code.
        seed: of the client's randomness; the same for each offer of this task to this client.
        deadline_s: seconds until the round's deadline when the task was offered.
        weighting: with `CLIENT`, `train` must return an `Update` that has a weight.
        checkpoints: of an interrupted training; see `checkpoint` and `resume`.
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
    training_round: int = 0
    local: RuleContext = field(default_factory=RuleContext, repr=False, compare=False)
    checkpoints: Checkpoints = field(default_factory=Checkpoints, repr=False, compare=False)
    _stop: _Stop = field(default_factory=_Stop, repr=False, compare=False)
    _reporter: Reporter = field(default_factory=Reporter, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.training_round:
            object.__setattr__(self, "training_round", self.round)

    def config_as(self, kind: type[T]) -> T:
        """The run's `[config]` as a dataclass of your own.

        Args:
            kind: a dataclass with fields of bool, int, float, str, `Literal` or `| None`. Fields
                with a default may be left out of the run's `[config]`.

        Raises:
            UsageError: a name is unknown or missing, or a value has another type.
        """
        return typed_config.typed(self.config, kind)

    def progress(self, done: float | tuple[float, float], loss: object = None) -> None:
        """Report the training's progress to the operator; cheap enough to call every step.

        At most one message a second leaves the device, and none without a connection. In a private
        run the loss is not sent.

        Args:
            done: a fraction from 0 to 1, or `(done, of)`, such as steps.
            loss: recent training loss; anything that `float` accepts.
        """
        self._reporter.report(done, loss)

    @contextmanager
    def reporting(self, listener: Callable[[TrainingProgress], None]) -> Iterator[None]:
        """For agents: pass progress to `listener` in the training thread, at most once a second."""
        self._reporter.listener = listener
        try:
            yield
        finally:
            self._reporter.listener = None

    def pass_on(self, note: TrainingProgress) -> None:
        """For agents: pass on progress that another process has reported."""
        if self._reporter.listener is not None:
            self._reporter.listener(note)

    def tensors(self, names: Iterable[str]) -> frozenset[str]:
        """The model's tensors that this task trains, including personal ones that are not sent.

        Raises:
            UsageError: the run's settings select none of the model's tensors.
        """
        kept = self.local.personal.kept(names := list(names))
        others = set(names) - kept - self.local.adapters.frozen(names)
        try:
            return kept | self.settings.tensors(others, self.seed)
        except ValueError as error:
            raise UsageError(str(error)) from None

    def width(self) -> float:
        """The share of each hidden dimension that this client trains and sends as `SliceOf`."""
        return self.settings.width(self.client)

    def should_stop(self) -> bool:
        """Whether to stop soon: write a `checkpoint` if you can, and return the partial result.

        If the task was withdrawn, the result is not sent.
        """
        return self.dropped or self.out_of_time

    @property
    def dropped(self) -> bool:
        """Whether the result will be discarded, as after a withdrawal."""
        return self._stop.dropped

    @property
    def out_of_time(self) -> bool:
        """Whether the training exceeded this device's time budget; a partial result is sent."""
        return time.monotonic() >= self._stop.ends_at

    def limit(self, seconds: float) -> None:
        """For agents: set the training's time budget, seconds from now."""
        self._stop.ends_at = time.monotonic() + seconds

    def stop(self) -> None:
        """Ask the training code to stop; its result is discarded."""
        self._stop.dropped = True

    def checkpoint(self, write: Callable[[BinaryIO], object], *, always: bool = False) -> bool:
        """Save the state of the training, to resume after a kill or a reboot.

        Call it often, such as after each epoch: it writes only if the last checkpoint is older than
        `interruptions.checkpoint_s`, or if the training must stop.

            for epoch in range(epoch, epochs):
                ...
                task.checkpoint(lambda file: np.savez(file, epoch=epoch + 1, **params))

        Args:
            write: writes the state to a file.
            always: write regardless of the last checkpoint's age.

        Returns:
            Whether it was written. A full disk, or `budgets.disk_mb`, does not fail the training.
        """
        if not (always or self.dropped or self.checkpoints.due()):
            return False
        return self.checkpoints.save(write)

    def resume(self) -> Path | None:
        """File of the checkpoint of this same task; None if there is none.

        Check that it still fits your data.
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
    """The result of a training.

    Attributes:
        params: new values of all tensors or some, whole (an array) or in part.
        num_examples: trained on.
        metrics: averaged over the clients.
        weight: of this update, if the run weights by client.
    """

    params: Mapping[str, "NDArray[Any] | SliceOf | MaskOf"]
    num_examples: int
    metrics: Metrics = field(default_factory=dict)
    weight: float | None = None


Trained: TypeAlias = (
    "Update | tuple[Mapping[str, NDArray[Any] | SliceOf | MaskOf], int, Mapping[str, float]]"
)


class Client:
    """Subclass this. `train` and `evaluate` never run at once.

    `fedloom client run` runs them in a process of its own, which ends after `keep_warm_s` without a
    task, or with a crash: what an object remembers from one round to the next is lost then.
    """

    def train(self, params: Params, task: Task) -> Trained:
        """Train on local data.

        Args:
            params: the model as the server sent it; copies that you may change.
            task: how to train.

        Returns:
            New parameters (all or some of them), the number of examples and metrics; or an
            `Update`.
        """
        raise NotImplementedError

    def evaluate(self, params: Params, task: Task) -> tuple[int, Metrics]:
        """Evaluate on local data; omit it if there is no data to evaluate on.

        Returns:
            The number of examples and metrics.
        """
        raise NotImplementedError

    def answer(self, message: bytes, task: Task) -> bytes:  # noqa: ARG002 - a subclass uses them
        """Answer a message of a Flower `ServerApp`; `fedloom client run --flower` does.

        Args:
            message: a serialised `flwr.proto.message_pb2.Message`.
            task: of this message.

        Returns:
            The reply, likewise serialised.

        Raises:
            UsageError: this client answers none.
        """
        raise UsageError(
            "Expected a client that answers messages of a Flower ServerApp, got one that trains: "
            "run `fedloom client run --flower MODULE:APP` on this device."
        )

    def initial(self) -> Params | None:
        """Initial model of a run, for `fedloom model init`; None if this client has none."""
        return None

    def can_train(self) -> bool:
        """Whether `train` is implemented; a client without it declines training tasks."""
        return type(self).train is not Client.train

    def can_evaluate(self) -> bool:
        """Whether `evaluate` is implemented."""
        return type(self).evaluate is not Client.evaluate
