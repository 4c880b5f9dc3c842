"""The mathematics of federated learning: strategies, client rules, aggregation, selection, privacy.

    >>> import numpy as np
    >>> from fedloom.strategies import DELTA, FedAvgM, Full, Partial, TensorSpec
    >>> from fedloom.strategies import exponent, weight_units
    >>> model = {"w": np.zeros(2)}
    >>> strategy = FedAvgM(server_learning_rate=0.5)
    >>> state = strategy.init(model)
    >>> specs = strategy.specs({"w": TensorSpec(shape=(2,), dtype=np.dtype(np.float64))})
    >>> total = Partial(specs, exponent(max_abs=10.0, max_weight_sum=100.0))
    >>> total.add_array((DELTA, "w"), Full(), weight_units(30.0), np.array([1.0, 2.0]))
    >>> total.add_array((DELTA, "w"), Full(), weight_units(10.0), np.array([3.0, 2.0]))
    >>> strategy.finish(state, model, total)[0]["w"]
    array([0.75, 1.  ])

numpy only; no I/O, no clock, no threads. Start at `base`, which defines a strategy, and at
`exact.partial`, which defines the sum of a round. The names that this package exports are listed in
`__init__.pyi`; a module is loaded when one of its names is first used.
"""

from fedloom.strategies.lazy_imports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
