"""The hub of live events: one message per change; readers that do not read are disconnected."""

import asyncio
import json

from fedloom.server.event_hub import BACKLOG, MAX_WATCHERS, Hub
from support.patience import PATIENCE_S


def _events(message):
    """Names and data of the events in a message."""
    blocks = [dict(line.split(": ", 1) for line in block.splitlines())
              for block in message.decode().split("\n\n") if block]  # fmt: skip
    return [(block["event"], json.loads(block["data"])) for block in blocks]


async def _next(watcher):
    async with asyncio.timeout(PATIENCE_S):
        return _events(await anext(aiter(watcher)))


async def _greeted(hub, topics=()):
    watcher = hub.watch(topics)
    assert (await _next(watcher))[0][0] == "hello"
    return watcher


def test_rapid_changes_are_sent_once_with_the_latest_value():
    """The hub describes a subject when it sends."""

    async def story():
        hub, looks = Hub(pace_s=0), []
        watcher = await _greeted(hub)
        for number in range(100):
            hub.changed("round", "a", lambda number=number: looks.append(number) or number)
        hub.changed("run", "a")
        return await _next(watcher), looks

    told, looks = asyncio.run(story())
    assert told == [("round", {"subject": "a", "now": 99}), ("run", {"subject": "a", "now": None})]
    assert looks == [99]


def test_version_of_an_unknown_subject_is_that_of_its_topic():
    """A URL may name a run by a prefix, so any run's change counts."""
    hub = Hub()
    hub.changed("run", "digits-1")
    hub.changed("work")
    assert hub.version_of(["run:digits-1"]) == hub.version_of(["run:digits"]) == 1
    assert hub.version_of(["models"]) == hub.version_of(["models:a"]) == 0


def test_watchers_share_one_lookup():
    """Ten pages cost one call and one serialisation."""

    async def story():
        hub, looks = Hub(pace_s=0), []
        watchers = [await _greeted(hub) for _ in range(10)]
        hub.changed("round", "a", lambda: looks.append(1))
        messages = [await anext(aiter(watcher)) for watcher in watchers]
        return looks, {id(message) for message in messages}

    looks, messages = asyncio.run(story())
    assert looks == [1]
    assert len(messages) == 1


def test_nothing_is_looked_up_without_watchers():
    async def story():
        hub = Hub(pace_s=0)
        hub.changed("round", "a", lambda: 1 / 0)
        watcher = await _greeted(hub)
        hub.leave(watcher)
        hub.changed("round", "a", lambda: 1 / 0)
        await asyncio.sleep(0.01)
        return hub.version

    assert asyncio.run(story()) == 2


def test_watcher_that_does_not_read_is_disconnected():
    """Its queue is bounded, and the others continue."""

    async def story():
        hub = Hub(pace_s=0)
        lazy, keen = hub.watch(), await _greeted(hub)
        for _ in range(BACKLOG + 1):
            hub.changed("run", "a")
            await _next(keen)
        held = [message async for message in lazy]
        return len(held), len(hub)

    assert asyncio.run(story()) == (BACKLOG, 1)


def test_log_lines_go_only_to_watchers_of_the_log():
    """Every line is sent."""

    async def story():
        hub = Hub(pace_s=0)
        plain, curious = await _greeted(hub), await _greeted(hub, ["log"])
        hub.changed("clients")
        await _next(plain)  # and no message, not even an empty one, for the other
        hub.line({"n": 1})
        hub.line({"n": 2})
        hub.changed("run", "a")
        return await _next(plain), await _next(curious)

    plain, curious = asyncio.run(story())
    assert plain == [("run", {"subject": "a", "now": None})]
    assert curious == [("log", [{"n": 1}, {"n": 2}])]


def test_beats_are_sent_while_nothing_changes():
    """So that a page can tell a quiet server from a lost one."""

    async def story():
        hub = Hub(pace_s=0, beat_s=0.01)
        watcher = await _greeted(hub)
        return [await _next(watcher) for _ in range(3)]

    assert asyncio.run(story()) == [[("beat", {})]] * 3


def test_watchers_are_limited():
    """One that leaves makes room."""

    async def story():
        hub = Hub()
        first = hub.watch()
        for _ in range(MAX_WATCHERS - 1):
            assert hub.watch() is not None
        assert hub.watch() is None
        hub.leave(first)
        assert hub.watch() is not None
        hub.close()
        return len(hub)

    assert asyncio.run(story()) == 0
