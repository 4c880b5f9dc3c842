"""Optional packages: an error for a missing one names the extra that installs it."""

import os
from importlib import import_module
from types import ModuleType

from fedloom.protocol.errors import UsageError


def flower(purpose: str) -> ModuleType:
    """Import Flower with its telemetry switched off.

    Args:
        purpose: completes the message "Expected Flower ...".

    Raises:
        UsageError: it is not installed.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    try:
        return import_module("flwr")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"Expected Flower {purpose}, got no module {error.name}: pip install 'fedloom[flower]'."
        ) from None
