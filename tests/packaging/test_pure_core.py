"""The core shared by server and simulation imports no transport, storage or framework."""

import subprocess
import sys

import pytest

IMPURE = (
    "asyncio", "cryptography", "fastapi", "google.protobuf", "grpc", "multiprocessing",
    "requests", "sqlalchemy", "starlette", "torch", "uvicorn",
)  # fmt: skip
"""Not here: os, threading and time, which numpy loads; the import contracts cover those."""

LOADING = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for name in getattr(package, "__all__", ()):
    getattr(package, name)
for each in pkgutil.iter_modules(getattr(package, "__path__", ())):
    importlib.import_module(f"{package.__name__}.{each.name}")
print(*(name for name in sys.argv[2:] if name in sys.modules))
"""


def _loaded(package: str, *names: str) -> list[str]:
    """Which of these modules a new interpreter has loaded after importing a whole package."""
    command = [sys.executable, "-c", LOADING, package, *names]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize("package", ["fedloom.server.engine", "fedloom.strategies"])
def test_the_core_imports_no_transport_or_storage(package):
    """Engine and strategies need only numpy."""
    assert _loaded(package, *IMPURE) == []


def test_planning_imports_no_ledger_or_transport():
    """It imports protobuf for headers."""
    acting = [name for name in IMPURE if name != "google.protobuf"]
    rooms = ("fedloom.server.ledger", "fedloom.server.rounds", "fedloom.server.storage")
    assert _loaded("fedloom.server.planning", *acting, *rooms) == []


def test_the_check_finds_grpc():
    """The check can fail."""
    assert "grpc" in _loaded("fedloom.protocol.transport.methods", *IMPURE)
