"""Differential privacy of whole clients: clipping, noise, what it costs and what is claimed.

Start at `settings`, the [privacy] table of a run, and `claim`, what it comes to. `release` puts
noise on a round's sum; `local` on a device's update; `accounting` asks dp-accounting, which the
extra `fedloom[privacy]` installs.
"""

from typing import TYPE_CHECKING

from fedloom.strategies.lazy_imports import exports

if TYPE_CHECKING:
    from fedloom.strategies.privacy.accounting import (
        MissingAccountant,
        Releases,
        calibrate,
        epsilon,
    )
    from fedloom.strategies.privacy.claim import Plan, plan, told
    from fedloom.strategies.privacy.clipping import clip, norm
    from fedloom.strategies.privacy.finishing import finish, memory_of
    from fedloom.strategies.privacy.local import add_noise, norm_bound
    from fedloom.strategies.privacy.release import NoisyMeans, Release, grid_exponent
    from fedloom.strategies.privacy.sampling import drawn
    from fedloom.strategies.privacy.settings import Privacy
    from fedloom.strategies.privacy.streams import Stream

__getattr__ = exports(
    __name__,
    {
        "accounting": "MissingAccountant Releases calibrate epsilon",
        "claim": "Plan plan told",
        "clipping": "clip norm",
        "finishing": "finish memory_of",
        "local": "add_noise norm_bound",
        "release": "NoisyMeans Release grid_exponent",
        "sampling": "drawn",
        "settings": "Privacy",
        "streams": "Stream",
    },
)

__all__ = [
    "MissingAccountant",
    "NoisyMeans",
    "Plan",
    "Privacy",
    "Release",
    "Releases",
    "Stream",
    "add_noise",
    "calibrate",
    "clip",
    "drawn",
    "epsilon",
    "finish",
    "grid_exponent",
    "memory_of",
    "norm",
    "norm_bound",
    "plan",
    "told",
]
