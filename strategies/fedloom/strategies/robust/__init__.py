"""Robust aggregation: rules that limit the influence of faulty, lying or colluding clients.

They read every update, block by block: see `base`; `geometry` has norms and distances.
"""

from fedloom.strategies.lazy_imports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
