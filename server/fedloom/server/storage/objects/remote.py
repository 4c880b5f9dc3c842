"""The object store of a running server: its requests, its threads, and the ledger's rows of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from fedloom.server.ledger import Ledger
from fedloom.server.storage.objects.deletions import Deletions
from fedloom.server.storage.objects.retries import RetriedObjects
from fedloom.server.store_url import StoreUrl
from fedloom.server.threads import Thread

P = ParamSpec("P")
T = TypeVar("T")

REQUESTS = 8
"""Transfers of bodies between this disk and the store at once, each with a part in memory."""


@dataclass(slots=True, kw_only=True)
class RemoteStorage:
    """The object store of a server.

    Attributes:
        url: of the store.
        objects: its requests, repeated while they fail.
        ledger: whose rows name the objects that count.
        in_ledger: the thread of its methods.
        in_store: threads for transfers of bodies.
        deletions: deletes objects that no row names any more.
        storing: models that are being put, whose rows are written when they are whole.
    """

    url: StoreUrl
    objects: RetriedObjects
    ledger: Ledger
    in_ledger: Thread
    in_store: Thread = field(default_factory=lambda: Thread("store", REQUESTS))
    deletions: Deletions = field(init=False)
    storing: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.deletions = Deletions(self.objects)

    def ask(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the ledger from a thread of another pool, which waits."""
        return self.in_ledger.wait(method, *args, **kwargs)

    def close(self) -> None:
        """End the transfers, and delete what waits for it; call it before `in_ledger` ends."""
        self.objects.close()
        self.in_store.close()
        self.deletions.close()
