"""The ranks of a site: orders, agreement, and the loss of a rank.

Rank 0 writes an order into the launcher's key-value store, and the other ranks wait for it there
without polling, for hours if necessary; a collective would time out. Tensors follow by broadcast.

Invariants: the ranks exchange failures of the author's code before the next collective, so that all
of them end the task and the site continues. A lost rank, or a failure that could not be exchanged,
breaks the site: each process ends, and the launcher may restart them.
"""

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fedloom.client.torch.group import RankTask
from fedloom.client.torch.site import orders
from fedloom.client.torch.site.norm import check_norms
from fedloom.client.training.ranks import Ranks
from fedloom.protocol.errors import FedloomError, UnavailableError, UsageError
from fedloom.protocol.task_kind import Kind
from fedloom.protocol.v1 import fleet_pb2

log = logging.getLogger(__name__)

TIMEOUT = "FEDLOOM_SITE_TIMEOUT_S"
TIMEOUT_S = 300.0
"""Timeout of a collective within a task, seconds."""
T = TypeVar("T")
_WAIT = timedelta(hours=1)
_HEARD = timedelta(seconds=5)
_ATTEMPT = "TORCHELASTIC_RESTART_COUNT"
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"


class SiteBrokenError(UnavailableError):
    """A rank of this site is lost; the site must be restarted."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks know after they have agreed on a step.

    Attributes:
        stop: rank 0 ends the training.
        sums: of the ranks' numbers.
    """

    stop: bool
    sums: list[float]


class SiteGroup:
    """This process's connection to the other ranks.

    Args:
        ranks: from the environment.
        on_cuda: gradients are on GPUs, so NCCL exchanges them.

    Attributes:
        broken: why the site is broken; empty while it works.
        on_break: called once when it breaks, from any thread.
    """

    def __init__(self, ranks: Ranks, *, on_cuda: bool) -> None:
        self.rank, self.size = ranks.rank, ranks.size
        self.broken = ""
        self.on_break: Callable[[], None] | None = None
        timeout = timedelta(seconds=float(os.environ.get(TIMEOUT, TIMEOUT_S)))
        # Process groups end with the process; torch would warn that they were not destroyed.
        warnings.filterwarnings("ignore", message=".*destroy_process_group.*")
        # torchrun's store keeps the entries of earlier attempts; with env:// new ranks would wait
        # for the addresses of old ones. So each attempt has its own prefix.
        attempt = f"fedloom/{os.environ.get(_ATTEMPT, '0')}"
        hosts = self.rank == 0 and os.environ.get(_AGENT_STORE) != "True"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_cuda else "gloo",
            store=_store(f"{attempt}/torch", timeout, hosts=hosts),
            rank=self.rank,
            world_size=self.size,
            timeout=timeout,
        )
        # A separate connection: while one thread waits on a store, no other thread can use it.
        self._store = _store(attempt, timeout)
        self._number = 0
        self._busy = False

    def objection(self, offer: fleet_pb2.Task) -> str | None:
        """Why this site cannot do a task; checked before the download."""
        if self.broken:
            return self.broken
        if offer.kind != fleet_pb2.TASK_KIND_TRAIN:
            return None
        return _objection(offer.train.batch_size, offer.personal.name, self.size)

    # ---- orders ------------------------------------------------------------------------------

    @contextmanager
    def led(self, job: RankTask, module: nn.Module) -> Iterator[None]:
        """Run a job on all ranks, from the module's values on this one.

        Raises:
            UsageError: several processes cannot run it, or the author's code failed.
            SiteBrokenError: a rank is lost.
        """
        if self.broken:
            raise SiteBrokenError(self.broken)
        check(job, module, self.size)
        with self._at_work():
            with self.speaking():
                self._store.set(f"order/{self._number}", orders.encode(job))
                self._store.delete_key(f"order/{self._number - 1}")
            self._share(module, orders.arrays_of(job.task))
            yield

    def next_order(self) -> orders.Order | None:
        """Wait for an order, without a timeout; None after the last.

        Raises:
            SiteBrokenError: rank 0 is lost.
        """
        key = f"order/{self._number}"
        while True:
            try:
                self._store.wait([key], _WAIT)
                text = self._store.get(key).decode()
            except dist.DistStoreError:
                continue  # no order for an hour
            except RuntimeError as error:
                raise self._break(error) from error
            if text != orders.STOP:
                return orders.decode(text)
            self._store.set(f"left/{self.rank}", "")
            return None

    @contextmanager
    def followed(self, order: orders.Order, module: nn.Module) -> Iterator[None]:
        """Run an order's job from rank 0's values."""
        with self._at_work():
            self._share(module, order.arrays)
            yield

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Run one job; it ends after all ranks have done it, or all have ended it."""
        self._busy = True
        try:
            yield
            self.agree()
        except SiteBrokenError:
            raise
        except BaseException as error:
            if self._busy:  # the other ranks do not know of the error
                self._break(error)
            raise
        finally:
            self._busy = False
            self._number += 1

    def _share(self, module: nn.Module, arrays: Mapping[str, object]) -> None:
        with self.speaking():
            for tensor in module.state_dict().values():
                dist.broadcast(_bytes(tensor), src=0)
            for array in arrays.values():
                dist.broadcast(_bytes(torch.as_tensor(array)), src=0)

    def close(self) -> None:
        """Send the last order and wait until the other ranks have read it from the store."""
        with suppress(RuntimeError):
            if self.rank == 0:
                self._store.set(f"order/{self._number}", orders.STOP)
                if not self.broken:
                    self._store.wait([f"left/{rank}" for rank in range(1, self.size)], _HEARD)
            if not self.broken:
                dist.destroy_process_group()

    # ---- agreement ---------------------------------------------------------------------------

    def agree(
        self, failure: Exception | None = None, *, stop: bool = False, numbers: Sequence[float] = ()
    ) -> Agreed:
        """Exchange failures, rank 0's wish to stop, and numbers.

        Args:
            failure: of this rank's code; all ranks then end the task.
            stop: on rank 0, whether to end the training.
            numbers: to be summed over the ranks.

        Raises:
            Exception: this rank's failure.
            UsageError: another rank's failure, with its message.
        """
        if failure is not None:
            with self.speaking():
                words = f"{type(failure).__name__}: {failure}"[:400]
                self._store.set(f"failure/{self._number}/{self.rank}", words)
        asked = [float(failure is not None), float(stop and self.rank == 0), *numbers]
        failed, stopped, *sums = self.sums(asked)
        if failed:
            self._busy = False
            raise failure if failure is not None else UsageError(self._failures())
        return Agreed(bool(stopped), sums)

    def together(self, call: Callable[[], T]) -> T:
        """Call a function that does not communicate; if it fails on one rank, all fail."""
        try:
            result = call()
        except Exception as error:
            self.agree(error)
            raise
        self.agree()
        return result

    def says(self, flag: bool) -> bool:
        """The flag of rank 0, on every rank."""
        return bool(self.sums([float(flag and self.rank == 0)])[0])

    def shared(self, data: bytes) -> bytes:
        """The bytes of rank 0, on every rank."""
        (size_bytes,) = self.sums([len(data) if self.rank == 0 else 0])
        return self._of(0, data, int(size_bytes))

    def gathered(self, data: bytes) -> list[bytes]:
        """The bytes of each rank, by rank, on every rank."""
        sizes = self.sums([len(data) if rank == self.rank else 0 for rank in range(self.size)])
        return [self._of(rank, data, int(size)) for rank, size in enumerate(sizes)]

    def _of(self, rank: int, data: bytes, size_bytes: int) -> bytes:
        if not size_bytes:
            return b""
        mine = rank == self.rank
        tensor = torch.frombuffer(bytearray(data if mine else size_bytes), dtype=torch.uint8)
        with self.speaking():
            dist.broadcast(tensor, src=rank)
        return tensor.numpy().tobytes()

    def sums(self, values: Sequence[float]) -> list[float]:
        """Numbers summed over the ranks, in float64."""
        vector = torch.tensor(values, dtype=torch.float64)
        self.sum_({"": vector})
        return [float(value) for value in vector]

    def sum_(self, tensors: Mapping[str, Tensor]) -> None:
        """Sum tensors over the ranks, in place."""
        with self.speaking():
            for _, tensor in sorted(tensors.items()):
                dist.all_reduce(tensor)

    def _failures(self) -> str:
        keys = [f"failure/{self._number}/{rank}" for rank in range(self.size)]
        for rank, key in enumerate(keys):
            if self._store.check([key]):
                return f"rank {rank} of {self.size} failed: {self._store.get(key).decode()}"
        return "a rank of this site failed"

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Wrap communication; an error in it breaks the site."""
        try:
            yield
        except FedloomError:
            raise
        except Exception as error:
            raise self._break(error) from error

    def _break(self, error: BaseException) -> SiteBrokenError:
        """Mark the site as broken: the ranks may be in different collectives."""
        first, self._busy = not self.broken, False
        self.broken = self.broken or (
            f"Rank {self.rank} lost a rank of this site of {self.size}: {type(error).__name__}: "
            f"{str(error)[:200]}. See the log of the rank that ended, and restart the site."
        )
        if first and self.on_break is not None:
            self.on_break()
        return SiteBrokenError(self.broken)


def _store(prefix: str, timeout: timedelta, *, hosts: bool = False) -> Any:
    """A connection to the ranks' key-value store; `hosts`: this process serves the store."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(  # type: ignore[attr-defined] # documented
        host, port, is_master=hosts, timeout=timeout, wait_for_workers=False
    )
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined] # documented


def _bytes(tensor: Tensor) -> Tensor:
    """A tensor's bytes, which every backend supports; shares its memory."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def check(job: RankTask, module: nn.Module, size: int) -> None:
    """Check that several processes can run a job.

    Raises:
        UsageError: they cannot.
    """
    if job.kind is not Kind.TRAIN:
        return
    task = job.task
    name = task.local.personal.name if task.local.personal.own_model else ""
    if objection := _objection(task.settings.batch_size, name, size):
        raise UsageError(objection)
    check_norms(module)


def _objection(batch_size: int, own_model: str, size: int) -> str | None:
    if batch_size % size:
        fitting = max(size, batch_size // size * size)
        return (
            f"Expected a batch size that is a multiple of this site's {size} ranks, got "
            f"{batch_size}. Set train.batch_size to {fitting}, or start another number of ranks."
        )
    if own_model:
        return (
            f"Expected one process with personal.name = {own_model!r}, got a site of {size} ranks. "
            "Start the client without torchrun."
        )
    return None
