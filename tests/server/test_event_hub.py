"""The hub of live events: told once, in few bytes, and to nobody who does not read."""

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


def test_changes_in_quick_succession_are_told_once_as_they_are_then():
    """The hub looks when it speaks, not when it hears, so what it says is the latest."""

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


def test_the_version_of_what_was_never_heard_of_is_that_of_its_kind():
    """An address may name a run by the beginning of its id: a change of any may be of that one."""
    hub = Hub()
    hub.changed("run", "digits-1")
    hub.changed("work")
    assert hub.version_of(["run:digits-1"]) == hub.version_of(["run:digits"]) == 1
    assert hub.version_of(["models"]) == hub.version_of(["models:a"]) == 0


def test_every_watcher_gets_the_same_bytes_looked_up_once():
    """Ten pages cost one look and one serialisation."""

    async def story():
        hub, looks = Hub(pace_s=0), []
        watchers = [await _greeted(hub) for _ in range(10)]
        hub.changed("round", "a", lambda: looks.append(1))
        messages = [await anext(aiter(watcher)) for watcher in watchers]
        return looks, {id(message) for message in messages}

    looks, messages = asyncio.run(story())
    assert looks == [1]
    assert len(messages) == 1


def test_nothing_is_looked_at_while_nobody_watches():
    """A round is not slowed by a console that nobody has open."""

    async def story():
        hub = Hub(pace_s=0)
        hub.changed("round", "a", lambda: 1 / 0)
        watcher = await _greeted(hub)
        hub.leave(watcher)
        hub.changed("round", "a", lambda: 1 / 0)
        await asyncio.sleep(0.01)
        return hub.version

    assert asyncio.run(story()) == 2


def test_watcher_that_does_not_read_is_let_go_of():
    """It holds a bounded number of messages, and the others hear on."""

    async def story():
        hub = Hub(pace_s=0)
        lazy, keen = hub.watch(), await _greeted(hub)
        for _ in range(BACKLOG + 1):
            hub.changed("run", "a")
            await _next(keen)
        held = [message async for message in lazy]
        return len(held), len(hub)

    assert asyncio.run(story()) == (BACKLOG, 1)


def test_log_lines_go_to_those_who_asked_for_them_alone():
    """A log is much to send, and every line of it counts."""

    async def story():
        hub = Hub(pace_s=0)
        plain, curious = await _greeted(hub), await _greeted(hub, ["log"])
        hub.changed("clients")
        await _next(plain)  # and nothing, not even an empty message, for the other
        hub.line({"n": 1})
        hub.line({"n": 2})
        hub.changed("run", "a")
        return await _next(plain), await _next(curious)

    plain, curious = asyncio.run(story())
    assert plain == [("run", {"subject": "a", "now": None})]
    assert curious == [("log", [{"n": 1}, {"n": 2}])]


def test_silence_is_broken_by_signs_of_life():
    """A page tells a quiet server from a lost one."""

    async def story():
        hub = Hub(pace_s=0, beat_s=0.01)
        watcher = await _greeted(hub)
        return [await _next(watcher) for _ in range(3)]

    assert asyncio.run(story()) == [[("beat", {})]] * 3


def test_watchers_are_counted():
    """Each holds a connection, so there is an end to them, and one that leaves makes room."""

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
