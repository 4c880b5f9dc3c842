"""The mathematics of federated learning: exact sums, client rules and server optimizers.

numpy only; no I/O, no clock, no threads. Start at `base`, which says what an algorithm is, and
`algebra`, which says what a round's sum is.
"""

from fedloom.strategies.algebra import (
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
from fedloom.strategies.averaging import FedAvg
from fedloom.strategies.base import (
    DELTA,
    ClientRule,
    State,
    Strategy,
    blockwise,
    state_from_arrays,
    state_to_arrays,
)
from fedloom.strategies.metrics import weighted_mean
from fedloom.strategies.optimizers import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedloom.strategies.registry import CLIENT_RULES, STRATEGIES, client_rule, strategy
from fedloom.strategies.rules import FedProx, Plain
from fedloom.strategies.settings import LocalTraining, RoundSettings

__all__ = [
    "CLIENT_RULES",
    "DELTA",
    "STRATEGIES",
    "WEIGHT_UNIT",
    "ClientRule",
    "Coverage",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedProx",
    "FedYogi",
    "Full",
    "Key",
    "LocalTraining",
    "Mask",
    "Params",
    "Partial",
    "Plain",
    "RoundSettings",
    "Slice",
    "State",
    "Strategy",
    "TensorSpec",
    "blockwise",
    "client_rule",
    "exponent",
    "state_from_arrays",
    "state_to_arrays",
    "strategy",
    "weight_units",
    "weighted_mean",
]
