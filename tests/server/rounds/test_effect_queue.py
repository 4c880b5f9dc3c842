"""Effects are performed in order, retried while storage fails, until an end stops them."""

import asyncio

from fedloom.server.background_tasks import BackgroundTasks
from fedloom.server.rounds import storage_retry
from fedloom.server.rounds.effect_queue import EffectQueue


class Recorder:
    """Performs strings: `!` raises, `?` fails once for lack of storage, `.` ends."""

    def __init__(self, *, continues):
        self.seen = []
        self._continues = continues
        self.over = asyncio.Event()
        self.queue = EffectQueue(self.perform, self.fail, self.ended, lambda: ("tests", {}))

    async def perform(self, effect):
        self.seen.append(effect)
        if effect == "?" and self.seen.count("?") == 1:
            raise OSError(28, "No space left on device")
        if effect == "!":
            raise ValueError(effect)
        return effect if effect == "." else None

    async def fail(self, error):
        return f"failed: {error}"

    def ended(self, end):
        self.seen.append(f"end {end}")
        self.over.set()
        return self._continues


def played(effects, *, continues=False):
    """The performed effects, of those queued before the start."""

    async def main():
        recorder = Recorder(continues=continues)
        for effect in effects:
            recorder.queue.put(effect)
        recorder.queue.start()
        await recorder.over.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        await recorder.queue.stop()
        return recorder.seen

    return asyncio.run(main())


def test_effects_are_done_in_order_until_one_ends_them():
    """Effects after the end are not performed."""
    assert played("ab.c") == ["a", "b", ".", "end ."]


def test_an_effect_whose_storage_fails_is_repeated_before_the_next(monkeypatch, caplog):
    """A full disk delays, loses nothing, and is logged."""
    monkeypatch.setattr(storage_retry, "FIRST_WAIT_S", 0.0)
    assert played("?a.") == ["?", "?", "a", ".", "end ."]
    assert "tests waits for its storage" in caplog.text


def test_an_effect_that_raises_ends_by_the_result_of_fail(caplog):
    """The error is logged with its traceback."""
    assert played("a!b") == ["a", "!", "end failed: !"]
    assert "ValueError" in caplog.text


def test_the_queue_of_buffers_continues_after_an_end():
    """One queue serves all buffers of a run."""
    assert played("a.b", continues=True) == ["a", ".", "end .", "b"]


def test_background_tasks_settle_even_if_one_fails_or_starts_another():
    done = []

    async def main():
        pending = BackgroundTasks()

        async def more():
            done.append("more")

        async def first():
            pending.start(more())
            raise ValueError

        failing = pending.start(first())
        await pending.settled()
        assert isinstance(failing.exception(), ValueError)
        slow = pending.start(asyncio.sleep(3600))
        pending.cancel()
        await pending.settled()
        assert slow.cancelled()

    asyncio.run(main())
    assert done == ["more"]
