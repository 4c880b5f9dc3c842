"""The order of jobs: longest first, by size in the first round and by predicted time later.

Workers take the next group when they are free. With the longest first, the total time is at most
4/3 of the best (Graham 1969, "Bounds on multiprocessing timing anomalies"). The order changes no
result.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedloom.simulation.kernels.base import ClientJob
from fedloom.simulation.workers.base import Report


class TimeModel:
    """Predicts seconds for a client: from its own past, else a constant plus a time per example.

    Args:
        examples: of each client, shape (clients,).
    """

    def __init__(self, examples: NDArray[np.int64]) -> None:
        self._examples = examples.astype(np.float64)
        self._habit = np.full(len(examples), np.nan)  # seconds of clients trained before
        self._moments = np.zeros((2, 2))
        self._sums = np.zeros(2)

    def observe(self, reports: Sequence[Report]) -> None:
        """Learn from finished jobs."""
        clients = np.array([report.client for report in reports], np.int64)
        seconds = np.array([report.seconds for report in reports])
        rows = np.stack([np.ones(len(clients)), self._examples[clients]])
        self._moments += rows @ rows.T
        self._sums += rows @ seconds
        before = self._habit[clients]
        self._habit[clients] = np.where(np.isnan(before), seconds, (before + seconds) / 2)

    def predict(self) -> NDArray[np.float64]:
        """Seconds that each client will take; its examples before anything was observed."""
        if not self._sums.any():
            return self._examples
        (constant, slope), *_ = np.linalg.lstsq(self._moments, self._sums, rcond=None)
        fitted = constant + slope * self._examples
        return np.where(np.isnan(self._habit), fitted, self._habit)


def grouped(
    jobs: Sequence[ClientJob], examples: NDArray[np.int64], size: int
) -> list[list[ClientJob]]:
    """Groups of jobs with similar numbers of examples; they depend only on the jobs."""
    ordered = sorted(jobs, key=lambda job: (-examples[job.client], job.client))
    return [ordered[n : n + size] for n in range(0, len(ordered), size)]


def longest_first(
    groups: Sequence[list[ClientJob]], seconds: NDArray[np.float64]
) -> list[list[ClientJob]]:
    """The groups, longest predicted time first."""
    total = [float(seconds[[job.client for job in group]].sum()) for group in groups]
    return [groups[n] for n in np.argsort(np.negative(total), kind="stable")]
