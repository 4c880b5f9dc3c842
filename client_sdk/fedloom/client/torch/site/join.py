"""How a process becomes a rank of its site: rank 0 goes on to the server, the others follow it."""

import hashlib
import logging
import signal
import threading
from types import FrameType

import torch

from fedloom.client.api import Client, Kind
from fedloom.client.torch import loop
from fedloom.client.torch.client import TorchClient
from fedloom.client.torch.site.group import SiteGroup
from fedloom.client.torch.site.orders import Order
from fedloom.client.training.ranks import Ranks
from fedloom.protocol.errors import UsageError

log = logging.getLogger(__name__)

STOP_S = 10.0
"""How long a rank that is told to stop waits for rank 0, which is told too: it ends the task that
they take part in, and then the site. Who left earlier would leave a thread of torch's behind that
waits for rank 0; when that ends, it takes a process down that is just ending (SIGABRT)."""


def join(client: Client, ranks: Ranks) -> SiteGroup:
    """Meet the other ranks; from then on the client trains together with theirs.

    Raises:
        UsageError: the client cannot, or the ranks have not the same model and data.
    """
    if not isinstance(client, TorchClient):
        raise UsageError(
            f"Expected a TorchClient on a site of {ranks.size} ranks, got a "
            f"{type(client).__name__}. Start it as one process, without torchrun."
        )
    group = SiteGroup(ranks, on_cuda=_placed(client, ranks))
    client.group = group
    _check_alike(client, group)
    log.info("rank %d of %d is ready", group.rank, group.size)
    return group


def follow(client: Client, group: SiteGroup) -> None:
    """Do what rank 0 says until it has no more, or until SIGTERM or SIGINT.

    Raises:
        SiteBrokenError: another rank is gone.
    """
    assert isinstance(client, TorchClient)
    rank = _Follower(client, group)
    rank.run()


class _Follower:
    """Waits in a thread: a signal reaches the main thread, however long the wait."""

    def __init__(self, client: TorchClient, group: SiteGroup) -> None:
        self._client, self._group = client, group
        self._worker = threading.Thread(target=self._work, name="rank", daemon=True)
        self._over = threading.Event()
        self._leaving = False
        self._error: BaseException | None = None

    def run(self) -> None:
        self._worker.start()
        before = {n: signal.signal(n, self._told) for n in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._over.wait()
            self._worker.join(1.0)  # its last step; one that hangs in a task stays behind
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._error is not None and not self._leaving:
            raise self._error

    def _told(self, _number: int, _frame: FrameType | None) -> None:
        self._leaving = True
        threading.Thread(target=self._leave, daemon=True).start()  # never wait in a handler

    def _leave(self) -> None:
        self._worker.join(STOP_S)
        self._over.set()

    def _work(self) -> None:
        try:
            while (order := self._group.next_order()) is not None:
                self._do(order)
        except BaseException as error:  # noqa: BLE001 - raised by the main thread
            self._error = error
        self._over.set()

    def _do(self, order: Order) -> None:
        client, group = self._client, self._group
        try:
            with group.followed(order, client.model):
                client.fit(order.job) if order.job.kind is Kind.TRAIN else client.measure()
        except Exception as error:
            if group.broken:
                raise
            log.warning("the task was given up: %s", error)


def _placed(client: TorchClient, ranks: Ranks) -> bool:
    """Move the module to this rank's GPU, if it is on any; returns whether it is.

    Raises:
        UsageError: there are fewer GPUs than ranks.
    """
    if loop.device_of(client.model).type != "cuda":
        return False
    if ranks.local_rank >= torch.cuda.device_count():
        raise UsageError(
            f"Expected a GPU for each rank on this machine, got {torch.cuda.device_count()} for "
            f"rank {ranks.local_rank}: start as many ranks as there are GPUs."
        )
    torch.cuda.set_device(ranks.local_rank)
    client.model.to(f"cuda:{ranks.local_rank}")
    return True


def _check_alike(client: TorchClient, group: SiteGroup) -> None:
    """Refuse ranks whose data or model differ from those of rank 0."""
    shapes = [(n, tuple(t.shape), str(t.dtype)) for n, t in client.model.state_dict().items()]
    print_ = hashlib.sha256(repr(shapes).encode()).digest()
    mine = (*client.num_examples, int.from_bytes(print_[:6], "big"))
    first = group.sums([float(n) if group.rank == 0 else 0.0 for n in mine])
    failure = None
    if tuple(first) != tuple(map(float, mine)):
        failure = UsageError(
            "Expected the same model and data on every rank, got "
            f"{mine[0]:,} examples to train on and {mine[1]:,} to evaluate on at rank "
            f"{group.rank}, {first[0]:,.0f} and {first[1]:,.0f} at rank 0"
            + (", of another model" if first[2] != mine[2] else "")
            + ". Every rank opens all of the site's data; fedloom deals it out."
        )
    group.agree(failure)
