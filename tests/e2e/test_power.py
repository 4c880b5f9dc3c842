"""Data that must survive a power loss is synced before it is acknowledged."""

import os
from pathlib import Path

import pytest

from fedloom.server.ledger import Ledger, updates
from fedloom.server.storage.spool import SpoolFile

pytestmark = pytest.mark.e2e


def noting(monkeypatch, order, owner, name, what):
    """Record each call of a method."""
    real = getattr(owner, name)

    def noted(self, *args, **kwargs):
        order.append(what)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(owner, name, noted)


def test_an_update_is_synced_before_it_counts(runner, arena, monkeypatch):
    """A repeat changes nothing."""
    order = []
    noting(monkeypatch, order, SpoolFile, "sync", "synced")
    noting(monkeypatch, order, updates, "_accept", "accepted")

    async def main():
        async with arena.open_round() as opened:
            await opened.send("alice", opened.honest("alice"))
            assert order == ["synced", "accepted"]
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
