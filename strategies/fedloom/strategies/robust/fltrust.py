"""FLTrust: weights updates by their direction relative to a trusted one.

Legend: g_0 the trusted client's update, g_i another's, TS trust scores.

    TS_i = max(0, cos(g_i, g_0));   g = Σ TS_i · (|g_0| / |g_i|) · g_i / Σ TS_i

References:
    Cao, Fang, Liu, Gong 2021, FLTrust: Byzantine-robust Federated Learning via Trust
    Bootstrapping, NDSS, https://arxiv.org/abs/2012.13995, section IV, Algorithm 2.

In the paper the server trains g_0 on a root data set. Here a client does, which the operator runs
or trusts, so that the server needs no data.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedloom.strategies.aggregation import TooFewUpdatesError, Updates
from fedloom.strategies.exact.partial import Floats, Params
from fedloom.strategies.robust.base import Combine, Robust, weighted
from fedloom.strategies.robust.geometry import geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class FLTrust(Robust):
    """The mean, weighted by trust, of updates scaled to the length of the trusted one.

    As in the paper the trusted update is the reference and not in the mean; if no other update has
    trust, the trusted update is the result. Trust replaces weights.

    Attributes:
        trusted: name of the client; a round without its update fails.
    """

    name: ClassVar[str] = "fltrust"
    trusted: str

    def __post_init__(self) -> None:
        if not isinstance(self.trusted, str) or not self.trusted:
            raise TypeError(f"Expected trusted to be a client's name, got {self.trusted!r}.")

    def _plan(self, updates: Updates, last: Params) -> Combine:  # noqa: ARG002 - remembers nothing
        names = list(updates.clients)
        if self.trusted not in names:
            raise TooFewUpdatesError(
                f"Expected an update of the trusted client {self.trusted!r} for fltrust, got those "
                f"of {len(names)} others. Have it in every cohort."
            )
        at = names.index(self.trusted)
        found = geometry(updates, with_rows=[at])
        return weighted(*_trust(found.norms, found.products[:, 0], at))


def _trust(norms: Floats, products: Floats, at: int) -> tuple[Floats, Floats]:
    """Return trust scores and the factors to the trusted update's length, float64 [n]."""
    lengths = norms * norms[at]
    scores = np.zeros_like(norms)
    np.divide(products, lengths, out=scores, where=lengths > 0)
    scores = np.maximum(scores, 0.0)
    scores[at] = 0.0
    factors = np.ones_like(norms)
    np.divide(norms[at], norms, out=factors, where=norms > 0)
    if not scores.any():
        scores[at] = 1.0
    return scores, factors
