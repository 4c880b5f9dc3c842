"""The sum of a round that is abandoned."""

import asyncio
from types import SimpleNamespace

import pytest

from fedloom.server.rounds.round_sum import RoundSum
from fedloom.server.threads import Thread


@pytest.mark.parametrize("abandoned", [True, False])
def test_an_abandoned_round_folds_nothing_more(tmp_path, monkeypatch, abandoned):
    """Its files are freed: a fold that waited for others would not find them, or find others."""
    folded = []

    def fold(_, waiting):
        folded.extend(each.client for each in waiting)
        return [[] for _ in waiting]

    async def fetch(_):
        pass

    async def scene():
        thread = Thread("fold")
        spec = SimpleNamespace(needs="sum", buffer_config=lambda: None)
        plan = SimpleNamespace(key=("r", 1), number=1, spec=spec)
        spool = SimpleNamespace(path=tmp_path.joinpath)
        sum_ = RoundSum(plan, SimpleNamespace(spool=spool, fetch=fetch, in_fold=thread))
        sum_.add("one", "r.1.one")
        await asyncio.sleep(0)  # it waits for others now
        if abandoned:
            await sum_.abandon()
        sum_._fold_together.hurry()
        await thread(lambda: None)
        thread.close()

    monkeypatch.setattr(RoundSum, "_fold_in_thread", fold)
    monkeypatch.setattr(RoundSum, "_empty", lambda _: None)
    asyncio.run(scene())
    assert folded == ([] if abandoned else ["one"])
