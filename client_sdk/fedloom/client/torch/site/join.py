"""Ranks of a site: rank 0 becomes the client, the other ranks follow its orders."""

import hashlib
import logging
import signal
import threading
from types import FrameType

import torch

from fedloom.client.api import Client
from fedloom.client.torch import loop
from fedloom.client.torch.client import TorchClient
from fedloom.client.torch.site.group import SiteGroup
from fedloom.client.torch.site.orders import Order
from fedloom.client.training.ranks import Ranks
from fedloom.protocol.errors import UsageError
from fedloom.protocol.task_kind import Kind

log = logging.getLogger(__name__)

STOP_S = 10.0
"""Seconds that a rank waits after a signal for rank 0, which gets the signal too and ends the task
and the site. A rank that exits earlier leaves a thread of torch that waits for rank 0; when rank 0
ends, that thread aborts the exiting process (SIGABRT)."""


def join(client: Client, ranks: Ranks) -> SiteGroup:
    """Connect to the other ranks; the client then trains together with theirs.

    Raises:
        UsageError: the client does not support it, or the ranks differ in model or data.
    """
    if not isinstance(client, TorchClient):
        raise UsageError(
            f"A site of {ranks.size} ranks needs a TorchClient, got a {type(client).__name__}. "
            "Start it as one process, without torchrun."
        )
    group = SiteGroup(ranks, on_cuda=_placed(client, ranks))
    client.group = group
    _check_alike(client, group)
    log.info("rank %d of %d is ready", group.rank, group.size)
    return group


def follow(client: Client, group: SiteGroup) -> None:
    """Follow rank 0's orders until the last one, SIGTERM or SIGINT.

    Raises:
        SiteBrokenError: another rank is lost.
    """
    assert isinstance(client, TorchClient)
    _Follower(client, group).run()


class _Follower:
    """Waits in a thread, so that the main thread can handle signals."""

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
            self._worker.join(1.0)  # time for its last step; a thread that hangs is left behind
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
            log.warning("the task failed: %s", error)


def _placed(client: TorchClient, ranks: Ranks) -> bool:
    """Move the module to this rank's GPU if it is on a GPU; returns whether it is."""
    if loop.device_of(client.model).type != "cuda":
        return False
    if ranks.local_rank >= torch.cuda.device_count():
        raise UsageError(
            f"Local rank {ranks.local_rank} has no GPU: this machine has "
            f"{torch.cuda.device_count()}. Start as many ranks as there are GPUs."
        )
    torch.cuda.set_device(ranks.local_rank)
    client.model.to(f"cuda:{ranks.local_rank}")
    return True


def _check_alike(client: TorchClient, group: SiteGroup) -> None:
    """Check that this rank has the model and the data of rank 0."""
    shapes = [(n, tuple(t.shape), str(t.dtype)) for n, t in client.model.state_dict().items()]
    digest = hashlib.sha256(repr(shapes).encode()).digest()
    mine = (*client.num_examples, int.from_bytes(digest[:6], "big"))
    first = group.sums([float(n) if group.rank == 0 else 0.0 for n in mine])
    failure = None
    if tuple(first) != tuple(map(float, mine)):
        failure = UsageError(
            "Expected the same model and data on every rank, got "
            f"{mine[0]:,} examples to train on and {mine[1]:,} to evaluate on at rank "
            f"{group.rank}, {first[0]:,.0f} and {first[1]:,.0f} at rank 0"
            + (", and another model" if first[2] != mine[2] else "")
            + ". Every rank must open all of the site's data; fedloom distributes the examples."
        )
    group.agree(failure)
