"""Packages export the names in their stubs; a client imports only what its run needs."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import fedloom.strategies
from fedloom.protocol import codecs
from fedloom.strategies import lazy_imports, registry

PACKAGES = [
    "fedloom.protocol.codecs",
    "fedloom.simulation",
    "fedloom.simulation.sweep",
    "fedloom.strategies",
    "fedloom.strategies.privacy",
    "fedloom.strategies.robust",
    "fedloom.strategies.selection",
]
REGISTRIES = {
    "strategies": (registry.STRATEGIES, fedloom.strategies),
    "client rules": (registry.CLIENT_RULES, fedloom.strategies),
    "aggregations": (registry.AGGREGATIONS, fedloom.strategies),
    "selections": (registry.SELECTIONS, fedloom.strategies),
    "codecs": (codecs.CODECS, codecs),
}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_exports_the_names_of_its_stub(name):
    """Each can be imported and is in `__all__` and `dir`; any other name is refused."""
    package = importlib.import_module(name)
    assert package.__all__ == dir(package)
    assert len(package.__all__) > 2
    for export in package.__all__:
        assert getattr(package, export) is not None
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018 - asked for to fail


@pytest.mark.parametrize("name", PACKAGES)
def test_a_name_is_exported_once_and_is_not_that_of_a_module(name):
    """A module would replace it once imported."""
    found = [export.name for export in lazy_imports.exports(name)]
    assert len(set(found)) == len(found)
    folder = Path(importlib.import_module(name).__file__).parent
    assert not {path.stem for path in folder.iterdir()} & set(found)


@pytest.mark.parametrize("kind", REGISTRIES)
def test_every_registered_class_is_exported(kind):
    known, package = REGISTRIES[kind]
    for build in known.values():
        assert getattr(package, build.__name__) is build
        assert build.__name__ in package.__all__


def test_a_program_can_register_classes():
    """Without a line in a stub."""
    names = lazy_imports.Registry("fedloom.strategies", "rule")
    listed = set(names)
    names["mine"] = dict
    assert names["mine"] is dict
    assert names["fedprox"] is fedloom.strategies.FedProx
    del names["fedprox"]
    assert set(names) == listed - {"fedprox"} | {"mine"}


def test_a_client_imports_no_strategy_that_it_does_not_use():
    """Robust rules, selection and codecs are loaded when a run names them."""
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
