"""Packages give what they list, and a client imports what its run needs, no more."""

import importlib
import subprocess
import sys

import pytest

PACKAGES = [
    "fedloom.strategies",
    "fedloom.strategies.privacy",
    "fedloom.strategies.robust",
    "fedloom.strategies.selection",
    "fedloom.protocol.codecs",
]


@pytest.mark.parametrize("name", PACKAGES)
def test_everything_listed_is_there(name):
    """And what is not listed is refused as it is by any module."""
    package = importlib.import_module(name)
    for export in package.__all__:
        assert getattr(package, export) is not None
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018 - asked for to fail


def test_a_client_imports_no_strategy_that_nobody_asked_for():
    """Neither robust rules nor selection, nor codecs: they are the server's, or a run's choice."""
    code = "import sys, fedloom.client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    for unwanted in (
        "fedloom.strategies.robust.krum",
        "fedloom.strategies.selection.oort",
        "fedloom.strategies.optimizers.adaptive",
        "fedloom.protocol.codecs.quantise",
        "fedloom.server",
        "torch",
    ):
        assert unwanted not in loaded
