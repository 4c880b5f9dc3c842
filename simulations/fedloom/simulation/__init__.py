"""Thousands of clients on one machine, with the server's own rounds.

    from fedloom.simulation import config, simulate
    result = simulate(config.load("digits.toml"))

What a module here needs is loaded when it is asked for: a device's program that reads its shard by
`fedloom.simulation.sources.shards` does not load PyTorch for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedloom.simulation.api import simulate
    from fedloom.simulation.data.population import Examples, Population
    from fedloom.simulation.experiment import EngineSettings, Experiment
    from fedloom.simulation.output.history import Result, RoundRecord
    from fedloom.simulation.wire.harness import over_the_wire

_HOMES = {
    "EngineSettings": "experiment",
    "Examples": "data.population",
    "Experiment": "experiment",
    "Population": "data.population",
    "Result": "output.history",
    "RoundRecord": "output.history",
    "over_the_wire": "wire.harness",
    "simulate": "api",
}

__all__ = [
    "EngineSettings",
    "Examples",
    "Experiment",
    "Population",
    "Result",
    "RoundRecord",
    "over_the_wire",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """Load what is asked for by its name."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
