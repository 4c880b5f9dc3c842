"""The training thread: declined offers while training code ignores a stop request."""

import asyncio
import threading

import pytest

from fedloom.client.agent import training_thread
from fedloom.client.agent.training_thread import TrainingThread
from fedloom.client.api import Client
from fedloom.client.budgets import Budgets
from fedloom.client.state.store import ClientStore
from support import tasks


@pytest.fixture(autouse=True)
def no_grace(monkeypatch):
    """Any training that does not stop at once is overdue."""
    monkeypatch.setattr(training_thread, "GRACE_S", 0.01)


async def meanwhile(folder, task, ask):
    """Act during a training; returns the objections at once and 700 s later."""
    let_go, now = threading.Event(), [100.0]
    one = TrainingThread(Client(), ClientStore(folder), Budgets(), lambda: now[0])
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


def test_a_normal_training_raises_no_objection(tmp_path):
    assert asyncio.run(meanwhile(tmp_path, tasks.task(), lambda _: None)) == (None, None)


def test_a_training_past_the_limit_of_the_device_raises_an_objection(tmp_path):
    """Its result will be sent, but nothing else can be trained."""
    task = tasks.task()
    first, second = asyncio.run(meanwhile(tmp_path, task, lambda _: task.limit(0.0)))
    assert "past budgets.training_s" in first.reason
    assert "for 700 s" in second.reason


def test_the_requested_pause_grows_with_the_time_waited(tmp_path):
    """It equals that time, from one second to one minute."""
    first, second = asyncio.run(meanwhile(tmp_path, tasks.task(), lambda running: running.cancel()))
    assert "the server withdrew it" in first.reason
    assert (first.again_s, second.again_s) == (1.0, 60.0)
