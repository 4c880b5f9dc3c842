"""Robust aggregation: rules that hold when some clients lie, are broken, or collude.

They look at every update, block by block; `base` says how, `geometry` where updates lie.
"""

from fedloom.strategies.lazy_imports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
