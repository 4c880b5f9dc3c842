"""What runs training code: in this process, or in one of its own.

Both give the same updates, because both run `TaskRun`; what differs is what a crash ends.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from fedloom.client.api import Task
from fedloom.client.gates import Objection
from fedloom.client.owner.policy import Policy
from fedloom.protocol.errors import printable
from fedloom.protocol.user_code import place
from fedloom.protocol.v1 import fleet_pb2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskOrder:
    """One task to run.

    Attributes:
        message: the task as the server sent it.
        task: as the training code sees it; `stop` and progress pass through it.
        client: this client's name.
        policy: what the device's owner allows to leave.
    """

    message: fleet_pb2.Task
    task: Task
    client: str
    policy: Policy


class TaskRunner(ABC):
    """Runs training code, one task at a time."""

    @abstractmethod
    async def start(self) -> None:
        """Load the training code, if that is not done yet.

        Raises:
            FedloomError: it cannot be loaded.
        """

    @abstractmethod
    def can_train(self) -> bool:
        """Whether the code has a `train`."""

    @abstractmethod
    async def train(self, order: TaskOrder) -> fleet_pb2.UpdateHeader:
        """Run a task; its update is then in the outbox.

        Returns, even when cancelled, only after the code has ended or its process has.

        Raises:
            PolicyError: the owner's policy keeps the update here.
            OutOfTimeError: it took too long, and there is no result that can be sent.
            Exception: the code failed; see `reasons`.
        """

    @abstractmethod
    async def objection(self) -> Objection | None:
        """Why nothing can be trained now; None if a task would be run."""

    @abstractmethod
    def memory_bytes(self) -> int:
        """Memory in addition to this process's."""

    def heard(self, verdict: fleet_pb2.SiteVerdict) -> None:
        """The server says which sums of a run counted: of use to a site, not to a device."""
        log.debug("ignored a verdict on sums of %s", printable(verdict.run, 80))

    def sent(self, header: fleet_pb2.UpdateHeader) -> None:
        """The server has accepted an update: of use to a site, not to a device."""
        log.debug("the update of round %d of %s was accepted", header.task.round, header.task.run)

    def runs_held(self) -> Sequence[str]:
        """Runs of the server that a site holds for its devices; a device holds none."""
        return ()

    @abstractmethod
    async def close(self) -> None:
        """End what is still running."""


class CodeError(Exception):
    """Training code in another process raised an exception.

    Attributes:
        name: of the exception's class.
        text: its message.
        place: the line of the code; see `user_code.place`.
    """

    def __init__(self, name: str, text: str, place: str = "") -> None:
        super().__init__(f"{name}: {text}")
        self.name, self.text, self.place = name, text, place


class TrainingProcessError(Exception):
    """The process of the training code ended, or was ended, before there was a result.

    Attributes:
        what: what happened, without anything that the training code wrote.
    """

    def __init__(self, what: str, output: str = "") -> None:
        super().__init__(f"{what} Its last output: {output}" if output else what)
        self.what = what


def reasons(error: Exception) -> tuple[str, str]:
    """Why a task failed, in words for the server: without what may quote data, and in full."""
    if isinstance(error, TrainingProcessError):
        return error.what, str(error)
    if isinstance(error, CodeError):
        return error.name, str(error)
    name = type(error).__name__
    return name, f"{name}: {words(error)}"


def located(error: Exception) -> str:
    """Why a task failed, in full, after the line of the author's code; for this device only."""
    where = error.place if isinstance(error, CodeError) else place(error)
    _, full = reasons(error)
    return f"{where}: {full}" if where else full


def as_exception(error: BaseException) -> Exception:
    """What training code raised, as an exception that fails only its task.

    `SystemExit` would end the agent, `CancelledError` would look like a withdrawn task, and a
    future cannot hold `StopIteration`.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    said = f"{type(error).__name__}({words(error)})"
    wrapped = RuntimeError(f"The training code raised {said}.")
    wrapped.__cause__ = error
    return wrapped


def words(error: BaseException) -> str:
    """The message of an error; its class may fail to give one."""
    try:
        return printable(str(error))
    except Exception as another:  # noqa: BLE001 - the author's own class
        return f"<its message raises {type(another).__name__}>"
