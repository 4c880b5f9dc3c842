"""Who is asked: policies that draw a cohort from the candidates and from what is known of them.

Start at `base`, which says what a policy is given and gives. `history` is where what is known comes
from.
"""

from fedloom.strategies.lazy_imports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
