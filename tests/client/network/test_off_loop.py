"""Calls that read files: a thread of their own only where that is worth it."""

import asyncio
import threading

import pytest

from fedloom.client.network.off_loop import SMALL_BYTES, off_loop


@pytest.mark.parametrize("size_bytes", [0, SMALL_BYTES])
def test_a_call_of_few_bytes_needs_no_thread(size_bytes):
    async def scene():
        return await off_loop(size_bytes, threading.get_ident) == threading.get_ident()

    assert asyncio.run(scene())


def test_a_call_of_many_bytes_leaves_the_loop_free():
    """The loop would wait for ever for a call that waits for the loop."""

    async def scene():
        free = threading.Event()
        asyncio.get_running_loop().call_later(0.01, free.set)
        return await off_loop(SMALL_BYTES + 1, free.wait, 10)

    assert asyncio.run(scene())


def test_errors_and_arguments_pass_through():
    async def scene(size_bytes):
        return await off_loop(size_bytes, int, "z", base=2)

    for size_bytes in (0, SMALL_BYTES + 1):
        with pytest.raises(ValueError, match="base 2"):
            asyncio.run(scene(size_bytes))
