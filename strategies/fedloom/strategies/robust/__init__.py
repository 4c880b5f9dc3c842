"""Robust aggregation: rules that hold when some clients lie, are broken, or collude.

They look at every update, block by block; `base` says how, `geometry` where updates lie.
"""

from typing import TYPE_CHECKING

from fedloom.strategies.lazy_imports import exports

if TYPE_CHECKING:
    from fedloom.strategies.robust.base import Lazy, Robust
    from fedloom.strategies.robust.clipping import CenteredClipping, NormBounding
    from fedloom.strategies.robust.coordinate import Median, TrimmedMean
    from fedloom.strategies.robust.fltrust import FLTrust
    from fedloom.strategies.robust.geometric import GeometricMedian
    from fedloom.strategies.robust.krum import Bulyan, Krum, MultiKrum
    from fedloom.strategies.robust.updates import ArrayUpdate, ArrayUpdates

__getattr__ = exports(
    __name__,
    {
        "base": "Lazy Robust",
        "clipping": "CenteredClipping NormBounding",
        "coordinate": "Median TrimmedMean",
        "fltrust": "FLTrust",
        "geometric": "GeometricMedian",
        "krum": "Bulyan Krum MultiKrum",
        "updates": "ArrayUpdate ArrayUpdates",
    },
)

__all__ = [
    "ArrayUpdate",
    "ArrayUpdates",
    "Bulyan",
    "CenteredClipping",
    "FLTrust",
    "GeometricMedian",
    "Krum",
    "Lazy",
    "Median",
    "MultiKrum",
    "NormBounding",
    "Robust",
    "TrimmedMean",
]
