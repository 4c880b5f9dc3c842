"""Refuse a deadline of rounds within which too few devices can report, before the first round."""

from collections.abc import Callable, Sequence
from math import ceil

import numpy as np

from fedloom.protocol.errors import UsageError
from fedloom.server.engine import BufferConfig, RoundConfig

from .devices import Devices, Load


def check_deadline(
    config: RoundConfig | BufferConfig,
    devices: Devices,
    names: Sequence[str],
    load: Callable[[int], Load],
    attempts: int,
) -> None:
    """Check that as many devices as the quorum can report in time in one of the first rounds.

    A device that took part before has the model, so only the first round counts the download. A
    buffer that is abandoned ends all work, so these hold for buffers as well.

    Args:
        config: of a round or a buffer.
        devices: of the population.
        names: of its clients.
        load: at least, by the number of the round.
        attempts: abandoned rounds in a row after which the run pauses.

    Raises:
        UsageError: too few can in any of these rounds; with the time that they need.
    """
    needed, everyone = min(max(config.quorum, 1), len(devices)), np.arange(len(devices))
    for number in range(1, attempts + 1):
        seconds = devices.work_times(load(number), number).of(everyone, has_files=number > 1)
        if np.count_nonzero(seconds <= config.deadline_s) >= needed:
            return
    seconds = devices.work_times(load(1), 1).of(everyone)
    slowest = int(np.argsort(seconds, kind="stable")[needed - 1])
    who = f"the fastest device, {names[slowest]}, needs"
    if needed > 1:
        who = f"the {needed} fastest devices, as many as cohort.quorum, need up to"
    normal = devices.normals(1)
    factor = 1.0 if normal is None else float(np.exp(devices.jitter * normal[slowest]))
    train_s = float(load(1).examples_of(slowest) * devices.example_s[slowest]) * factor
    wanted = _rounded_up(float(seconds[slowest]))
    raise UsageError(
        f"No round can end in time: with cohort.deadline_s = {config.deadline_s:g}, {who} "
        f"{seconds[slowest]:.3g} s of virtual time, of which training takes {train_s:.3g} s and "
        f"transfers {seconds[slowest] - train_s:.3g} s. Set cohort.deadline_s to {wanted:g} or "
        "more, or train less in a round."
    )


def _rounded_up(seconds: float) -> float:
    """Seconds rounded up to two digits.

    >>> _rounded_up(12.31), _rounded_up(0.0712)
    (13.0, 0.072)
    """
    unit: float = 10.0 ** (np.floor(np.log10(seconds)) - 1)
    return float(f"{ceil(seconds / unit) * unit:.2g}")
