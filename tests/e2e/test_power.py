"""Data that must survive a power loss is synced before it is acknowledged."""

import errno
import os
from pathlib import Path

import grpc
import pytest

from fedloom.server.ledger import Ledger, updates

pytestmark = pytest.mark.e2e


def noting(monkeypatch, order, owner, name, what):
    """Record each call of a method."""
    real = getattr(owner, name)

    def noted(self, *args, **kwargs):
        order.append(what)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(owner, name, noted)


def noting_syncs(monkeypatch, order, folder):
    """Record each sync of the folder, and of a file in it: its name."""
    for call in ("fdatasync", "fsync"):
        real = getattr(os, call)

        def noted(handle, real=real):
            path = Path(f"/proc/self/fd/{handle}").readlink()
            if folder in (path, path.parent):
                order.append(path.name)
            return real(handle)

        monkeypatch.setattr(os, call, noted)


def test_an_update_is_synced_before_it_counts(runner, arena, monkeypatch):
    """With its name in the folder: the file may be new, or another update's before."""
    order, spool = [], arena.federation.contexts.spool.path("x").parent
    noting_syncs(monkeypatch, order, spool)
    noting(monkeypatch, order, updates, "accept_in", "accepted")

    async def main():
        async with arena.open_round() as opened:
            await opened.send("alice", opened.honest("alice"))
            number = opened.offers["alice"].key.round
            assert order[:3] == [f"{opened.run}.{number}.alice", spool.name, "accepted"]
            assert await opened.finish() == arena.digest

    runner.run(main())


def test_an_update_whose_sync_failed_is_sent_again(runner, arena, monkeypatch):
    """All of it: the system reports a failed write once, and the next sync succeeds without it."""
    failed, real = [], os.fdatasync

    def fdatasync(handle):
        name = Path(f"/proc/self/fd/{handle}").readlink().name
        if name.endswith(".alice") and not failed:
            failed.append(name)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(handle)

    monkeypatch.setattr(os, "fdatasync", fdatasync)

    async def main():
        async with arena.open_round() as opened:
            first = await opened.send("alice", opened.honest("alice"))
            assert failed
            assert first.status is grpc.StatusCode.UNAVAILABLE, first
            again = await opened.send("alice", opened.honest("alice"))
            proceed, accepted = again.replies
            assert proceed.proceed.offset == 0
            assert not accepted.accepted.repeated
            assert await opened.finish() == arena.digest

    runner.run(main())


def test_a_model_is_synced_before_it_is_committed(runner, arena, monkeypatch):
    """Under its digest, and with its folder."""
    models = arena.federation.contexts.models
    known, order = {*models.find("")}, []
    for call in ("fdatasync", "fsync"):
        real = getattr(os, call)

        def noted(handle, call=call, real=real):
            path = Path(f"/proc/self/fd/{handle}").readlink()
            if path.is_relative_to(models.path("x").parent):
                order.append((call, {*models.find("")} == known))
            return real(handle)

        monkeypatch.setattr(os, call, noted)
    noting(monkeypatch, order, Ledger, "commit_round", "committed")

    async def main():
        async with arena.open_round(max_weight=999.0) as opened:
            known.discard(arena.digest)
            models.path(arena.digest).unlink(missing_ok=True)
            order.clear()
            assert await opened.finish() == arena.digest

    runner.run(main())
    ours = order[: order.index("committed")]
    assert ours[:2] == [("fdatasync", True), ("fsync", False)]
