"""Work that continues without its caller."""

import asyncio
import gc

import pytest

from fedloom.server.background_tasks import to_the_end


@pytest.mark.long
def test_work_ends_after_its_caller_was_cancelled():
    """Its error is dropped; asyncio logs nothing."""
    done, logged = [], []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        may_end = asyncio.Event()

        async def work():
            await may_end.wait()
            done.append(True)
            raise ValueError

        caller = asyncio.ensure_future(to_the_end(work()))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        may_end.set()
        while not done:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        gc.collect()

    asyncio.run(main())
    gc.collect()
    assert (done, logged) == ([True], [])


def test_a_caller_gets_the_result_or_the_error():
    """As without cancellation."""

    async def work(value):
        return 1 / value

    assert asyncio.run(to_the_end(work(2))) == 0.5
    with pytest.raises(ZeroDivisionError):
        asyncio.run(to_the_end(work(0)))
