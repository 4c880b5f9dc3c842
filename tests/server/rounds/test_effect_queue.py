"""Effects are done in order, again while storage fails, and an end is asked whether to go on."""

import asyncio

from fedloom.server.rounds import storage_retry
from fedloom.server.rounds.background_tasks import Pending
from fedloom.server.rounds.effect_queue import Performer


class Recorder:
    """Performs strings: `!` raises, `?` fails for want of storage once, `.` ends."""

    def __init__(self, *, goes_on):
        self.seen = []
        self._goes_on = goes_on
        self.over = asyncio.Event()
        self.performer = Performer(self.perform, self.fail, self.ended, lambda: ("tests", {}))

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
        return self._goes_on


def played(effects, *, goes_on=False):
    """What is seen of effects that are put before anything is done."""

    async def main():
        recorder = Recorder(goes_on=goes_on)
        for effect in effects:
            recorder.performer.put(effect)
        recorder.performer.start()
        await recorder.over.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        await recorder.performer.stop()
        return recorder.seen

    return asyncio.run(main())


def test_effects_are_done_in_order_until_one_ends_them():
    """What comes after the end is not done."""
    assert played("ab.c") == ["a", "b", ".", "end ."]


def test_a_step_that_storage_fails_is_done_again_before_the_next(monkeypatch, caplog):
    """A full disk delays, loses nothing, and is said."""
    monkeypatch.setattr(storage_retry, "FIRST_WAIT_S", 0.0)
    assert played("?a.") == ["?", "?", "a", ".", "end ."]
    assert "tests waits for its storage" in caplog.text


def test_a_step_that_raises_ends_by_what_follows_on_it(caplog):
    """The error goes to the log with its traceback."""
    assert played("a!b") == ["a", "!", "end failed: !"]
    assert "ValueError" in caplog.text


def test_whoever_has_more_to_do_goes_on_after_an_end():
    """Buffers do: one performer serves them all."""
    assert played("a.b", goes_on=True) == ["a", ".", "end .", "b"]


def test_what_is_pending_settles_even_if_it_fails_or_begins_more():
    """Nothing that was begun is left behind."""
    done = []

    async def main():
        pending = Pending()

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
