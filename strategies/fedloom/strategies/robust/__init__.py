"""Robust aggregation: rules that bound what faulty, lying or colluding clients can do.

They read every update, block by block: see `base`; `geometry` has norms and distances.
"""

from fedloom.strategies.lazy_imports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
