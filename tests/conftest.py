"""What tests share: property tests judged by results, and a real server to be rude to."""

import asyncio
import threading
from functools import partial

import pytest
from hypothesis import HealthCheck, settings

# A busy machine must not fail a property; the algebra's own tests ask for more where it pays.
settings.register_profile(
    "fedloom", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fedloom")


@pytest.fixture(scope="module")
def runner():
    """One event loop for a module's tests: it stands still between them."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def federation(runner, tmp_path_factory):
    """A running server with its own authority, shared by a module's tests."""
    from support.federation import Federation  # loads grpc: only for those who ask

    federation = Federation(tmp_path_factory.mktemp("server"))
    runner.run(federation.start())
    yield federation
    runner.run(federation.stop())


@pytest.fixture
def exporters_end():
    """What exports spans ends with its test: it draws from the generator that properties watch."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("Otel"):
            thread.join()


@pytest.fixture
def updates_of(tmp_path):
    """Have a client do a task as its agent would; gives the header of the update in its outbox."""
    from support.outbox import update_of  # as above

    return partial(update_of, folder=tmp_path)
