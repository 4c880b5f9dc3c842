from .base import Robust as Robust
from .clipping import CenteredClipping as CenteredClipping  # [aggregation] centered_clipping
from .clipping import NormBounding as NormBounding  # [aggregation] norm_bounding
from .coordinate import Median as Median  # [aggregation] median
from .coordinate import TrimmedMean as TrimmedMean  # [aggregation] trimmed_mean
from .fltrust import FLTrust as FLTrust  # [aggregation] fltrust
from .geometric import GeometricMedian as GeometricMedian  # [aggregation] geometric_median
from .krum import Bulyan as Bulyan  # [aggregation] bulyan
from .krum import Krum as Krum  # [aggregation] krum
from .krum import MultiKrum as MultiKrum  # [aggregation] multi_krum
from .updates import ArrayUpdate as ArrayUpdate
from .updates import ArrayUpdates as ArrayUpdates
