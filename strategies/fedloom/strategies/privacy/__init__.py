"""Differential privacy of whole clients: clipping, noise, accounting and claims.

Start at `settings`, the [privacy] table of a run, and `claim`, the resulting guarantee. `release`
adds noise to a round's sum, `local` to a device's update; `accounting` uses dp-accounting, which
the extra `fedloom[privacy]` installs.
"""

from fedloom.strategies.lazy_imports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
