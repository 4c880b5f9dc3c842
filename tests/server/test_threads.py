"""Calls for a thread, one by one and those that wait together."""

import asyncio
import threading
import time

import pytest

from fedloom.server.threads import Grouped, Thread
from support.patience import PATIENCE_S


@pytest.fixture
def thread():
    thread = Thread("tested")
    yield thread
    thread.close()


class Doer:
    """Notes the groups that it did; items that are negative fail."""

    def __init__(self):
        self.groups = []

    def __call__(self, items):
        self.groups.append(list(items))
        return [ValueError(str(item)) if item < 0 else 10 * item for item in items]


def test_calls_that_wait_are_done_together_in_their_order(thread):
    """Before what was queued after the first of them, and each has its own result."""

    async def scene():
        free, done, order = threading.Event(), Doer(), []
        grouped = Grouped(thread, done)
        blocker = thread.start(free.wait, PATIENCE_S)

        async def noted(what, waits):
            order.append((what, await waits))

        calls = [asyncio.ensure_future(noted(1, grouped(1)))]
        await asyncio.sleep(0)
        calls.append(asyncio.ensure_future(noted("close", thread(lambda: "closed"))))
        await asyncio.sleep(0)
        calls += [asyncio.ensure_future(noted(n, grouped(n))) for n in (2, 3)]
        await asyncio.sleep(0)
        free.set()
        await blocker
        await asyncio.gather(*calls)
        last = await grouped(4)
        return done.groups, order, last

    groups, order, last = asyncio.run(scene())
    assert groups == [[1, 2, 3], [4]]
    assert order == [(1, 10), (2, 20), (3, 30), ("close", "closed")]
    assert last == 40


def test_each_caller_gets_its_own_error(thread):
    async def scene():
        free, grouped = threading.Event(), Grouped(thread, Doer())
        thread.start(free.wait, PATIENCE_S)
        calls = [asyncio.ensure_future(grouped(n)) for n in (1, -2, 3)]
        await asyncio.sleep(0)
        free.set()
        return await asyncio.gather(*calls, return_exceptions=True)

    one, error, three = asyncio.run(scene())
    assert (one, str(error), three) == (10, "-2", 30)


def test_an_error_of_the_group_is_raised_for_all(thread):
    """As when the disk of the ledger is full."""

    def full(items):
        raise OSError(f"{len(items)} items: the disk is full")

    async def scene():
        free, grouped = threading.Event(), Grouped(thread, full)
        thread.start(free.wait, PATIENCE_S)
        calls = [asyncio.ensure_future(grouped(n)) for n in (1, 2)]
        await asyncio.sleep(0)
        free.set()
        return await asyncio.gather(*calls, return_exceptions=True)

    assert [str(error) for error in asyncio.run(scene())] == ["2 items: the disk is full"] * 2


def test_an_item_is_done_though_its_caller_is_cancelled(thread):
    async def scene():
        free, done = threading.Event(), Doer()
        grouped = Grouped(thread, done)
        blocker = thread.start(free.wait, PATIENCE_S)
        calls = [asyncio.ensure_future(grouped(n)) for n in (1, 2)]
        await asyncio.sleep(0)
        calls[0].cancel()
        free.set()
        await blocker
        found = await asyncio.gather(*calls, return_exceptions=True)
        return done.groups, found

    groups, (cancelled, two) = asyncio.run(scene())
    assert groups == [[1, 2]]
    assert isinstance(cancelled, asyncio.CancelledError)
    assert two == 20


def test_a_group_has_at_most_so_many_items(thread):
    """The rest is done at the later places, each item once; who was cancelled is left out."""

    async def scene():
        free, done = threading.Event(), Doer()
        grouped = Grouped(thread, done, most=2, until_cancelled=True)
        blocker = thread.start(free.wait, PATIENCE_S)
        calls = [asyncio.ensure_future(grouped(n)) for n in range(1, 7)]
        await asyncio.sleep(0)
        calls[1].cancel()
        free.set()
        await blocker
        return done.groups, await asyncio.gather(*calls, return_exceptions=True)

    groups, found = asyncio.run(scene())
    assert groups == [[1, 3], [4, 5], [6]]
    assert isinstance(found.pop(1), asyncio.CancelledError)
    assert found == [10, 30, 40, 50, 60]


def test_calls_that_are_done_together_take_one_place(thread):
    async def scene():
        free, pairs = threading.Event(), Grouped(thread, Doer(), most=2)
        grouped = Grouped(thread, Doer())
        thread.start(free.wait, PATIENCE_S)
        calls = [asyncio.ensure_future(grouped(n)) for n in range(5)]
        await asyncio.sleep(0)
        of_all = thread.pending - 1
        calls += [asyncio.ensure_future(pairs(n)) for n in range(5)]
        await asyncio.sleep(0)
        of_pairs = thread.pending - 1 - of_all
        free.set()
        await asyncio.gather(*calls)
        return of_all, of_pairs

    assert asyncio.run(scene()) == (1, 3)


def test_with_patience_a_call_waits_for_others(thread):
    """Until as many wait as are done together, or the caller hurries; then none waits again."""

    async def scene():
        done = Doer()
        grouped = Grouped(thread, done, most=3, patience_s=PATIENCE_S)
        calls = [asyncio.ensure_future(grouped(n)) for n in range(4)]
        first = await asyncio.gather(*calls[:3])
        await thread(lambda: None)
        waits = not calls[3].done()
        grouped.hurry()
        return done.groups, [*first, await calls[3], await grouped(4)], waits

    groups, results, waits = asyncio.run(scene())
    assert waits
    assert groups == [[0, 1, 2], [3], [4]]
    assert results == [0, 10, 20, 30, 40]


def test_patience_ends(thread):
    async def scene():
        done = Doer()
        grouped = Grouped(thread, done, most=3, patience_s=0.01)
        results = [await asyncio.wait_for(grouped(n), PATIENCE_S) for n in (1, 2)]
        return done.groups, results

    assert asyncio.run(scene()) == ([[1], [2]], [10, 20])


def test_all_calls_have_ended_when_one_of_them_failed():
    """The caller may close what the others read."""
    pool, ended, free = Thread("tested", 2), [], threading.Event()

    def call(item):
        if item < 0:
            free.set()
            raise ValueError(item)
        assert free.wait(PATIENCE_S)
        time.sleep(0.1 * (item - 1))  # without it the test could pass by luck
        ended.append(item)

    try:
        with pytest.raises(ValueError, match="-1"):
            pool.wait_all(call, [1, -1, 2])
        assert ended == [1, 2]
    finally:
        pool.close()


def test_a_caller_does_not_wait_for_a_thread_that_is_closed():
    """What was queued is cancelled, and so is who waits for it; nothing more is queued."""

    async def scene():
        thread, free = Thread("closed"), threading.Event()
        grouped = Grouped(thread, Doer())
        thread.start(free.wait, PATIENCE_S)
        calls = [asyncio.ensure_future(grouped(n)) for n in (1, 2)]
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.05, free.set)
        await asyncio.to_thread(thread.close)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait(calls)
            with pytest.raises(RuntimeError):
                await grouped(3)
        return [call.cancelled() for call in calls]

    assert asyncio.run(scene()) == [True, True]
