"""Shared fixtures: settings of property tests, an event loop and a running server.

Hooks keep the collection of thousands of tests short.
"""

import asyncio
import gc
import os
import signal
import threading
import time
from functools import partial

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

import fedloom.protocol.transport  # noqa: F401 - configures gRPC before a test imports it

# Without a deadline, so that a busy machine fails no property; tests may ask for more examples.
settings.register_profile(
    "fedloom", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fedloom")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell leaves it for commands in the background; processes that tests start inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """No garbage collection among sixteen thousand tests: that is half of the time of collecting.

    What stays is frozen, so that no later collection goes through it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Tests have no doctests: each of their modules is collected once."""
    return [each for each in (yield) if not isinstance(each, DoctestModule)]


def pytest_runtest_setup():
    """After `FEDLOOM_TEST_UNTIL`, in seconds since 1970, what is left is skipped, and counted."""
    if time.time() > float(os.environ.get("FEDLOOM_TEST_UNTIL", "inf")):
        pytest.skip("left out, as this machine is slow: the time for these tests is over")


@pytest.fixture(scope="module")
def runner():
    """One event loop for a module's tests; it runs only during a test."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def federation(runner, tmp_path_factory):
    """A running server with its own authority, shared by a module's tests."""
    from support.federation import Federation  # imports grpc: only for tests that need it

    federation = Federation(tmp_path_factory.mktemp("server"))
    runner.run(federation.start())
    yield federation
    runner.run(federation.stop())


@pytest.fixture
def exporters_end():
    """Threads that export spans end with their test: Hypothesis checks the generator they use."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("Otel"):
            thread.join()


@pytest.fixture
def updates_of(tmp_path):
    """Run a task as an agent would; returns the header of the update in the client's outbox."""
    from support.outbox import update_of  # as above

    return partial(update_of, folder=tmp_path)
