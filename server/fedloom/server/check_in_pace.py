"""When devices that check in are to come: the settings, and pure functions of numbers.

Devices of a large fleet come evenly spread: enough of them wait at any time. Of a small fleet too
few would ever wait at once, so its devices meet: they come at common times, which are multiples of
a period since the epoch, so that nothing needs to be remembered of them. The virtual clock of the
simulation uses the same functions.

Source: Bonawitz et al. 2019, "Towards Federated Learning at Scale: System Design", section 2.3
(pace steering).

Invariants: a device comes at most `LONGEST × every_s` after it was told, and once in `every_s` on
average; of a fleet that is spread not before `every_s / 2`, else not to the same meeting again.
Periods of meetings divide each other, so devices that were told while the fleet had another size
come to the same meetings.
"""

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import setting

Floats = NDArray[np.float64]

MARGIN = 2
"""Devices that come to a meeting, for each that rounds want: some are off, or decline."""

LONGEST = 1.75
"""Longest time until the next check-in, in `every_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckInRules:
    """The settings of `[check_in]` in server.toml, for devices with attendance = "check-in"."""

    every_s: float = setting(
        7200.0, doc="time between two check-ins of a device, on average, seconds", least=0
    )
    hold_s: float = setting(
        20.0,
        doc="longest time that a device waits for work at a check-in, seconds; at most half of "
        "every_s",
        least=0,
    )

    def __post_init__(self) -> None:
        if not 0 < self.hold_s <= self.every_s / 2 < inf:
            raise UsageError(
                "Expected check_in.hold_s > 0, and at most half of check_in.every_s = "
                f"{self.every_s:g}, got {self.hold_s:g}."
            )

    @property
    def missing_after_s(self) -> float:
        """Time after its check-in was due at which a device that did not come is missing.

        After an outage a device waits up to the time that it was told last, once more.
        """
        return LONGEST * self.every_s + self.hold_s


def meetings(population: float, wanted: float, rules: CheckInRules) -> int:
    """Number of meetings in `every_s`; 0 if devices come evenly spread.

    Args:
        population: devices that check in.
        wanted: devices that rounds draw at once; 0 while none waits for any.
        rules: the settings.
    """
    each = MARGIN * wanted
    if not wanted or population * rules.hold_s >= each * rules.every_s:
        return 0
    most = max(1, int(population // each))
    return 1 << (most.bit_length() - 1)


def next_check_ins_s(
    now: Floats | float, number: int, rules: CheckInRules, first: Floats, second: Floats
) -> Floats:
    """Times until the next check-ins, seconds.

    Args:
        now: when each device is told, seconds since the epoch.
        number: of `meetings` in `every_s`.
        rules: the settings.
        first: random numbers in [0, 1), one for each device: how soon, or which meeting.
        second: likewise: when within the meeting.
    """
    if not number:
        return rules.every_s * (0.5 + first)
    period_s = rules.every_s / number
    # `number` meetings later on average, give or take half of that.
    spread = number // 2
    meeting = np.floor(now / period_s) + number - spread + np.floor((2 * spread + 1) * first)
    # All have come when the first one has waited for half of its time; the other half is for
    # connections that take long.
    at: Floats = meeting * period_s + second * (rules.hold_s / 2)
    return at - now
