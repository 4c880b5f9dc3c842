"""Rounds on a virtual clock: which clients report when, and how a round ends, without training.

What a device computes does not depend on when it finishes, so a round is played first and only the
clients whose updates count are trained. If an update turns out to be refused, the round is played
again with that known.

Invariant: playing depends on its arguments alone.
"""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.server.engine import Buffer, Round, RoundConfig, Select, Wake
from fedloom.strategies.selection.roster import Attendance, Roster

from .devices import Devices, Load
from .playback import Opening, Play, Playback


class Clock:
    """Plays rounds of one population.

    Args:
        names: of the clients, all different.
        devices: theirs, in the same order; None for rounds without time, in which everyone is
            available, takes the task and reports in the order of the cohort.

    Raises:
        UsageError: there are not as many devices as names.
    """

    def __init__(self, names: Sequence[str], devices: Devices | None = None) -> None:
        if devices is not None and len(devices) != len(names):
            raise UsageError(f"Expected {len(names)} devices, got {len(devices)}.")
        self.names = tuple(names)
        self.devices = devices
        self.place_of = {name: place for place, name in enumerate(self.names)}
        self._roster = Roster(self.names)
        self._sorted = np.array([self.place_of[name] for name in self._roster.names], np.intp)

    def play(
        self,
        config: RoundConfig,
        *,
        select: Select,
        round_number: int,
        load: Load,
        start_s: float = 0.0,
        refused: frozenset[str] = frozenset(),
        excluded: frozenset[str] = frozenset(),
    ) -> Play:
        """Play a round; depends on its arguments and the clock's own alone.

        Args:
            config: of the round.
            select: draws the cohort and its replacements.
            round_number: its number; what differs from round to round is drawn for it.
            load: what it asks of each device; unused without devices.
            start_s: virtual seconds at which it begins to select.
            refused: clients whose updates are known to be refused.
            excluded: clients that may not be asked.

        Raises:
            UsageError: the goal is larger than the population, more are asked than are wanted
                though no device is slow, or so many devices are never there at once.
        """
        self.check(config)
        opening = self.opening(config, start_s)
        available = self.attendance(opening.there, excluded)
        engine = Round(config, select=select, now=opening.at_s, available=available)
        tasks = frozenset((round_number, self.place_of[name]) for name in refused)
        played = self.playback(
            engine, number=round_number, load=load, opening=opening, refused=tasks
        )
        played.run(Wake())
        return played.outcome(start_s)

    def playback(
        self,
        engine: Round | Buffer,
        *,
        number: int,
        load: Load,
        opening: Opening,
        refused: frozenset[tuple[int, int]],
    ) -> Playback:
        """What plays a round of these clients; see `Playback`."""
        return Playback(
            self.names, self.place_of, self.devices, engine,
            number=number, load=load, opening=opening, refused=refused,
        )  # fmt: skip

    def attendance(
        self, there: NDArray[np.bool_] | None, excluded: Collection[str] = ()
    ) -> Attendance:
        """The clients that may be asked.

        Args:
            there: which devices are there, in the order of the names; None for all.
            excluded: clients that may not be asked.
        """
        idle = np.ones(len(self.names), np.bool_) if there is None else there[self._sorted]
        idle[[self._roster.place_of[name] for name in excluded if name in self.place_of]] = False
        return Attendance(self._roster, idle)

    def check(self, config: RoundConfig) -> None:
        """Check that a population of this size, with or without devices, can do a round.

        Raises:
            UsageError: see `play`.
        """
        if config.goal > len(self.names):
            raise UsageError(
                f"Expected a goal of at most {len(self.names)} clients, which is all there are, "
                f"got {config.goal}."
            )
        if config.candidates > len(self.names):
            raise UsageError(
                f"Expected at most {len(self.names)} clients to be there before a round opens, "
                f"which is all there are, got {config.candidates}."
            )
        if self.devices is None and config.over_selection > 1:
            raise UsageError(
                f"Expected over_selection = 1 without devices, got {config.over_selection}: "
                "no device is slow without device models. Add [devices], or leave it out."
            )

    def opening(self, config: RoundConfig, start_s: float) -> Opening:
        """The moment at which as many devices are there as a round needs to open.

        Raises:
            UsageError: so many are never there at once.
        """
        if self.devices is None or self.devices.availability is None:
            return Opening(start_s, None, np.empty(0))
        availability = self.devices.availability
        there, changes = availability.look(start_s)
        needed = max(config.goal, config.candidates)
        if there.sum() >= needed:
            return Opening(start_s, there, changes)
        at_s = availability.first_with(needed, start_s)
        if at_s is None:
            raise UsageError(
                f"Expected {needed} devices that are there at once some time after "
                f"{start_s:g} s, got fewer at any time. Lower the goal, or give devices "
                "more time in [devices.availability]."
            )
        return Opening(at_s, *availability.look(at_s))


def play(
    config: RoundConfig,
    *,
    select: Select,
    names: Sequence[str],
    devices: Devices | None,
    round_number: int,
    load: Load,
    start_s: float = 0.0,
    refused: frozenset[str] = frozenset(),
) -> Play:
    """Play one round; a `Clock` saves looking up the names for each of many.

    Raises:
        UsageError: as `Clock` and `Clock.play` do.
    """
    return Clock(names, devices).play(
        config,
        select=select,
        round_number=round_number,
        load=load,
        start_s=start_s,
        refused=refused,
    )
