"""Partitioners: ways to split examples over clients.

`split` takes an `ExamplePool` and a partitioner of `PARTITIONERS` by name. The functions `iid`,
`dirichlet` and `follow` take labels and keep the shares that they drew, so that held-out examples
can be split like the training examples.
"""

from fedloom.simulation.partition.base import ExamplePool, Partitioner, Shards, Split
from fedloom.simulation.partition.by_label import (
    Dirichlet,
    Distribution,
    InnerDirichlet,
    LabelShards,
    Pathological,
)
from fedloom.simulation.partition.by_property import Continuous, GroupedNatural, Natural
from fedloom.simulation.partition.by_size import Exponential, Iid, Linear, PowerLaw, Sizes, Square
from fedloom.simulation.partition.classic import Partition, dirichlet, follow, iid
from fedloom.simulation.partition.registry import PARTITIONERS, build, split
from fedloom.simulation.partition.shift import FeatureShift

__all__ = [
    "PARTITIONERS",
    "Continuous",
    "Dirichlet",
    "Distribution",
    "ExamplePool",
    "Exponential",
    "FeatureShift",
    "GroupedNatural",
    "Iid",
    "InnerDirichlet",
    "LabelShards",
    "Linear",
    "Natural",
    "Partition",
    "Partitioner",
    "Pathological",
    "PowerLaw",
    "Shards",
    "Sizes",
    "Split",
    "Square",
    "build",
    "dirichlet",
    "follow",
    "iid",
    "split",
]
