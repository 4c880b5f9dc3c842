"""Partitioners: ways to split examples over clients.

`split` takes an `ExamplePool` and a partitioner of `PARTITIONERS` by name. The functions `iid`,
`dirichlet` and `follow` take labels and keep the shares that they drew, so that held-out examples
can be split like the training examples.
"""

from fedloom.simulation.partition.base import ExamplePool as ExamplePool
from fedloom.simulation.partition.base import Partitioner as Partitioner
from fedloom.simulation.partition.base import Shards as Shards
from fedloom.simulation.partition.base import Split as Split
from fedloom.simulation.partition.by_label import Dirichlet as Dirichlet
from fedloom.simulation.partition.by_label import Distribution as Distribution
from fedloom.simulation.partition.by_label import InnerDirichlet as InnerDirichlet
from fedloom.simulation.partition.by_label import LabelShards as LabelShards
from fedloom.simulation.partition.by_label import Pathological as Pathological
from fedloom.simulation.partition.by_property import Continuous as Continuous
from fedloom.simulation.partition.by_property import GroupedNatural as GroupedNatural
from fedloom.simulation.partition.by_property import Natural as Natural
from fedloom.simulation.partition.by_size import Exponential as Exponential
from fedloom.simulation.partition.by_size import Iid as Iid
from fedloom.simulation.partition.by_size import Linear as Linear
from fedloom.simulation.partition.by_size import PowerLaw as PowerLaw
from fedloom.simulation.partition.by_size import Sizes as Sizes
from fedloom.simulation.partition.by_size import Square as Square
from fedloom.simulation.partition.classic import Partition as Partition
from fedloom.simulation.partition.classic import dirichlet as dirichlet
from fedloom.simulation.partition.classic import follow as follow
from fedloom.simulation.partition.classic import iid as iid
from fedloom.simulation.partition.registry import PARTITIONERS as PARTITIONERS
from fedloom.simulation.partition.registry import build as build
from fedloom.simulation.partition.registry import split as split
from fedloom.simulation.partition.shift import FeatureShift as FeatureShift
