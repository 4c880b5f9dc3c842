"""Shared fixtures: settings of property tests, an event loop and a running server."""

import asyncio
import threading
from functools import partial

import pytest
from hypothesis import HealthCheck, settings

import fedloom.protocol.transport  # noqa: F401 - configures gRPC before a test imports it

# Without a deadline, so that a busy machine fails no property; tests may ask for more examples.
settings.register_profile(
    "fedloom", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fedloom")


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
