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

    The two are the least-squares fit to all finished jobs; of clients of one size, a time per
    example alone.

    Args:
        examples: of each client, shape (clients,).
    """

    def __init__(self, examples: NDArray[np.int64]) -> None:
        self._examples = examples.astype(np.float64)
        self._habit = np.full(len(examples), np.nan)  # seconds of clients trained before
        self._jobs = 0
        self._sum_x = self._sum_y = self._sum_xx = self._sum_xy = 0.0  # x: examples, y: seconds

    def observe(self, reports: Sequence[Report]) -> None:
        """Learn from finished jobs."""
        clients = [report.client for report in reports]
        seconds = np.array([report.seconds for report in reports])
        examples = self._examples[clients]
        self._jobs += len(clients)
        self._sum_x += float(examples.sum())
        self._sum_y += float(seconds.sum())
        self._sum_xx += float(examples @ examples)
        self._sum_xy += float(examples @ seconds)
        before = self._habit[clients]
        self._habit[clients] = np.where(np.isnan(before), seconds, (before + seconds) / 2)

    def predict(self, clients: Sequence[int]) -> NDArray[np.float64]:
        """Seconds that clients will take; their examples before anything was observed."""
        examples = self._examples[clients]
        if not self._jobs:
            return examples
        habit = self._habit[clients]
        constant, slope = self._fit()
        return np.where(np.isnan(habit), constant + slope * examples, habit)

    def _fit(self) -> tuple[float, float]:
        """Seconds of a job, and of an example."""
        spread = self._jobs * self._sum_xx - self._sum_x**2
        if spread <= 0:  # all of one size
            return 0.0, self._sum_xy / max(self._sum_xx, 1.0)
        slope = (self._jobs * self._sum_xy - self._sum_x * self._sum_y) / spread
        return (self._sum_y - slope * self._sum_x) / self._jobs, slope


def grouped(
    jobs: Sequence[ClientJob], examples: NDArray[np.int64], size: int
) -> list[list[ClientJob]]:
    """Groups of jobs with similar numbers of examples; they depend only on the jobs."""
    ordered = sorted(jobs, key=lambda job: (-examples[job.client], job.client))
    return [ordered[n : n + size] for n in range(0, len(ordered), size)]


def longest_first(groups: Sequence[list[ClientJob]], times: TimeModel) -> list[list[ClientJob]]:
    """The groups, longest predicted time first."""
    if not groups:
        return []
    seconds = times.predict([job.client for group in groups for job in group])
    ends = np.cumsum([len(group) for group in groups])
    total = np.add.reduceat(seconds, [0, *ends[:-1]])
    return [groups[n] for n in np.argsort(-total, kind="stable").tolist()]
