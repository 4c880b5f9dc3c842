"""Differential privacy of whole clients: clipping, noise, what it costs and what is claimed.

Start at `settings`, the [privacy] table of a run, and `claim`, what it comes to. `release` puts
noise on a round's sum; `local` on a device's update; `accounting` asks dp-accounting, which the
extra `fedloom[privacy]` installs.
"""

from fedloom.strategies.lazy_imports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
