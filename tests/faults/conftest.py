"""Faults with real processes: most take their time, and run by `make faults` alone."""

import os
from pathlib import Path

EVERY = "FEDLOOM_TEST_FAULTS"


def pytest_collection_modifyitems(config, items):
    """Leave out what is not marked `cheap`, unless the environment asks for all."""
    if os.environ.get(EVERY):
        return
    here = Path(__file__).parent
    ours = [item for item in items if here in item.path.parents]
    left = [item for item in ours if item.get_closest_marker("cheap") is None]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]
