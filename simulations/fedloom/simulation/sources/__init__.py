"""Sources of a population's data: `load` by name, or `from_arrays` and `from_torch`."""

from fedloom.simulation.sources.arrays import from_arrays, from_torch
from fedloom.simulation.sources.base import LoadedData, populate
from fedloom.simulation.sources.in_memory import is_split
from fedloom.simulation.sources.registry import SOURCES, load

__all__ = ["SOURCES", "LoadedData", "from_arrays", "from_torch", "is_split", "load", "populate"]
