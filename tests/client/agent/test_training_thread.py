"""The thread that the author's code trains in: what is said of it while it does not end."""

import asyncio
import threading

import pytest

from fedloom.client.agent import training_thread
from fedloom.client.agent.training_thread import TrainingThread
from support import tasks


@pytest.fixture(autouse=True)
def no_grace(monkeypatch):
    """A training that does not end at once is late."""
    monkeypatch.setattr(training_thread, "GRACE_S", 0.01)


async def meanwhile(task, ask):
    """Ask something of a trainer while a task's training goes on; returns what it objects to."""
    let_go, now = threading.Event(), [100.0]
    one = TrainingThread(lambda: now[0])
    assert await one.objection() is None
    running = asyncio.ensure_future(one.run(let_go.wait, task))
    await asyncio.sleep(0.01)
    ask(running)
    await asyncio.sleep(0.01)
    first = await one.objection()
    now[0] += 700.0
    second = await one.objection()
    let_go.set()
    await asyncio.wait([running])
    assert await one.objection() is None
    return first, second


def test_a_training_that_goes_on_as_it_should_is_no_objection():
    """The server knows that this client is at work."""
    assert asyncio.run(meanwhile(tasks.task(), lambda _: None)) == (None, None)


def test_a_training_past_the_limit_of_the_device_is_an_objection():
    """Nobody withdrew it, and what there is of it will be sent; but nothing else can be done."""
    task = tasks.task()
    first, second = asyncio.run(meanwhile(task, lambda _: task.limit(0.0)))
    assert "past budgets.training_s" in first.reason
    assert "for 700 s" in second.reason


def test_the_longer_it_lasts_the_longer_the_server_need_not_ask():
    """As long as the training has kept it so far, between a second and a minute."""
    first, second = asyncio.run(meanwhile(tasks.task(), lambda running: running.cancel()))
    assert "the server withdrew it" in first.reason
    assert (first.again_s, second.again_s) == (1.0, 60.0)
