"""Faults with real processes take minutes: only `make faults` runs them."""

import os
from pathlib import Path

EVERY = "FEDLOOM_TEST_FAULTS"


def pytest_collection_modifyitems(config, items):
    """Skip these tests unless the environment requests them."""
    if os.environ.get(EVERY):
        return
    here = f"tests/{Path(__file__).parent.name}/"  # text: comparing paths takes seconds
    ours = [item for item in items if item.nodeid.startswith(here)]
    config.hook.pytest_deselected(items=ours)
    items[:] = [item for item in items if not item.nodeid.startswith(here)]
