"""The mathematics of federated learning: exact sums, client rules and server optimizers.

numpy only; no I/O, no clock, no threads. Start at `base`, which says what an algorithm is, and
`algebra`, which says what a round's sum is.
"""

from fedloom.strategies.lazy_imports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
