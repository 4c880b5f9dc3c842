"""Strategies that a test hands over do not stay registered for other tests."""

import pytest

from fedloom.strategies import STRATEGIES


@pytest.fixture(autouse=True)
def registry():
    """The registry of strategies, as it was before when the test ends."""
    before = set(STRATEGIES)
    yield
    for name in set(STRATEGIES) - before:
        del STRATEGIES[name]
