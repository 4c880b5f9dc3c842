"""Client selection: policies that draw a cohort from the candidates and their history.

Start at `base`, which defines the input and output of a policy; `history` keeps the observations.
"""

from fedloom.strategies.lazy_imports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
