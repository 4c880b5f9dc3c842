"""The mathematics of federated learning: exact sums, client rules and server optimizers.

numpy only; no I/O, no clock, no threads. Start at `base`, which says what an algorithm is, and
`algebra`, which says what a round's sum is.
"""

from typing import TYPE_CHECKING

from fedloom.strategies.lazy_imports import exports

if TYPE_CHECKING:
    from fedloom.strategies.aggregation import Aggregation, Mean, Means, TooFewUpdatesError, Updates
    from fedloom.strategies.base import ServerOptimizer, Strategy, reduced
    from fedloom.strategies.client_rules import At, ClientRule, FedProx, Plain, Sent, Trained, Work
    from fedloom.strategies.exact.partial import (
        DELTA,
        SCALAR,
        WEIGHT_UNIT,
        Coverage,
        Full,
        Key,
        Mask,
        Params,
        Partial,
        Slice,
        TensorSpec,
        exponent,
        weight_units,
    )
    from fedloom.strategies.local_training import LocalTraining, RoundSettings
    from fedloom.strategies.metrics import MetricsSettings, summarize, weighted_mean
    from fedloom.strategies.optimizers.adaptive import FedAdagrad, FedAdam, FedAvgM, FedYogi
    from fedloom.strategies.optimizers.blockwise import Block, Closing, blockwise
    from fedloom.strategies.optimizers.fedavg import FedAvg
    from fedloom.strategies.optimizers.fedlamb import FedLamb
    from fedloom.strategies.optimizers.schedules import Schedule
    from fedloom.strategies.partial_work import Departures
    from fedloom.strategies.personal.settings import KEPT, MIX, OWN, OWN_BUFFERS, Personal
    from fedloom.strategies.registry import (
        AGGREGATIONS,
        CLIENT_RULES,
        SELECTIONS,
        STRATEGIES,
        client_rule,
        strategy,
    )
    from fedloom.strategies.staleness import STALENESS, Staleness, discounted, staleness_weighting
    from fedloom.strategies.state import (
        State,
        slots_from_arrays,
        slots_to_arrays,
        state_from_arrays,
        state_to_arrays,
    )

__getattr__ = exports(
    __name__,
    {
        "aggregation": "Aggregation Mean Means TooFewUpdatesError Updates",
        "exact.partial": "DELTA SCALAR WEIGHT_UNIT Coverage Full Key Mask Params Partial Slice "
        "TensorSpec exponent weight_units",
        "optimizers.fedavg": "FedAvg",
        "base": "ServerOptimizer Strategy reduced",
        "optimizers.blockwise": "Block Closing blockwise",
        "partial_work": "Departures",
        "optimizers.fedlamb": "FedLamb",
        "metrics": "MetricsSettings summarize weighted_mean",
        "optimizers.adaptive": "FedAdagrad FedAdam FedAvgM FedYogi",
        "personal.settings": "KEPT MIX OWN OWN_BUFFERS Personal",
        "registry": "AGGREGATIONS CLIENT_RULES SELECTIONS STRATEGIES client_rule strategy",
        "client_rules": "At ClientRule FedProx Plain Sent Trained Work",
        "optimizers.schedules": "Schedule",
        "local_training": "LocalTraining RoundSettings",
        "staleness": "STALENESS Staleness discounted staleness_weighting",
        "state": "State slots_from_arrays slots_to_arrays state_from_arrays state_to_arrays",
    },
)

__all__ = [
    "AGGREGATIONS",
    "CLIENT_RULES",
    "DELTA",
    "KEPT",
    "MIX",
    "OWN",
    "OWN_BUFFERS",
    "SCALAR",
    "SELECTIONS",
    "STALENESS",
    "STRATEGIES",
    "WEIGHT_UNIT",
    "Aggregation",
    "At",
    "Block",
    "ClientRule",
    "Closing",
    "Coverage",
    "Departures",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedLamb",
    "FedProx",
    "FedYogi",
    "Full",
    "Key",
    "LocalTraining",
    "Mask",
    "Mean",
    "Means",
    "MetricsSettings",
    "Params",
    "Partial",
    "Personal",
    "Plain",
    "RoundSettings",
    "Schedule",
    "Sent",
    "ServerOptimizer",
    "Slice",
    "Staleness",
    "State",
    "Strategy",
    "TensorSpec",
    "TooFewUpdatesError",
    "Trained",
    "Updates",
    "Work",
    "blockwise",
    "client_rule",
    "discounted",
    "exponent",
    "reduced",
    "slots_from_arrays",
    "slots_to_arrays",
    "staleness_weighting",
    "state_from_arrays",
    "state_to_arrays",
    "strategy",
    "summarize",
    "weight_units",
    "weighted_mean",
]
