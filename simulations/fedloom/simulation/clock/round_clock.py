"""Rounds on a virtual clock: which clients report when, and how a round ends, without training.

The result of training does not depend on its time, so a round is played first and only the clients
whose updates count are trained. If an update is refused, the round is played again with this
refusal.

Invariant: playing depends only on its arguments.
"""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.server.engine import Buffer, Round, RoundConfig, Select, Wake
from fedloom.strategies.selection.roster import Attendance, Roster

from .devices import Devices, Load
from .playback import Opening, Play, Playback
from .watch import Watch


class Clock:
    """Plays rounds of one population.

    Args:
        names: of the clients, all different.
        devices: in the same order; None for rounds without time, in which all clients are
            available, accept the task and report in the order of the cohort.

    Raises:
        UsageError: numbers of devices and names differ.
    """

    def __init__(self, names: Sequence[str], devices: Devices | None = None) -> None:
        if devices is not None and len(devices) != len(names):
            raise UsageError(f"Expected {len(names)} devices, got {len(devices)}.")
        self.names = tuple(names)
        self.devices = devices
        self.place_of = {name: place for place, name in enumerate(self.names)}
        self._roster = Roster(self.names)
        available = devices and devices.availability
        self._watch = Watch(available) if available else None
        self._sorted = np.array([self.place_of[name] for name in self._roster.names], np.intp)
        self._ranks = np.argsort(self._sorted)

    def play(
        self,
        config: RoundConfig,
        *,
        select: Select,
        round_number: int,
        load: Load | None,
        start_s: float = 0.0,
        refused: frozenset[str] = frozenset(),
        excluded: frozenset[str] = frozenset(),
    ) -> Play:
        """Play a round; depends only on its arguments and those of the clock.

        Args:
            config: of the round.
            select: draws the cohort and its replacements.
            round_number: its number, for random numbers.
            load: of each device; not needed without devices.
            start_s: virtual seconds at which it begins to select.
            refused: clients whose updates are known to be refused.
            excluded: clients that may not be selected.

        Raises:
            UsageError: the goal is larger than the population, over-selection without devices, or
                too few devices are available at once at any time.
        """
        self.check(config)
        opening = self.opening(config, start_s, excluded)
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
        load: Load | None,
        opening: Opening,
        refused: frozenset[tuple[int, int]],
    ) -> Playback:
        """A `Playback` of these clients."""
        return Playback(
            self.names, self.place_of, self.devices, engine,
            roster=self._roster, ranks=self._ranks, by_rank=self._sorted,
            number=number, load=load, opening=opening, refused=refused,
        )  # fmt: skip

    def attendance(
        self, there: NDArray[np.bool_] | None, excluded: Collection[str] = ()
    ) -> Attendance:
        """The clients that may be selected.

        Args:
            there: whether each device is available, in the order of the names; None for all.
            excluded: clients that may not be selected.
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
                f"Expected a goal of at most {len(self.names)} clients, the whole population, got "
                f"{config.goal}."
            )
        if config.candidates > len(self.names):
            raise UsageError(
                f"Expected at most {len(self.names)} candidates for a round, the whole population, "
                f"got {config.candidates}."
            )
        if self.devices is None and config.over_selection > 1:
            raise UsageError(
                f"Expected over_selection = 1 without devices, got {config.over_selection}: all "
                "devices are equally fast. Add [devices], or omit it."
            )

    def opening(
        self, config: RoundConfig, start_s: float, excluded: Collection[str] = ()
    ) -> Opening:
        """The opening: when as many devices are available as a round needs.

        Args:
            config: of the round.
            start_s: virtual seconds at which it begins to select.
            excluded: clients that may not be selected; they count as never available.

        Raises:
            UsageError: too few devices are available at once at any time.
        """
        out = [self.place_of[name] for name in excluded if name in self.place_of]
        opening, needed = self.opening_at(start_s, out), config.needed
        if self._watch is None or opening.there is None or opening.there.sum() >= needed:
            return opening
        at_s = self._watch.availability.first_with(needed, start_s, besides=out)
        if at_s is None:
            raise UsageError(
                f"After {start_s:g} s there are never {needed} devices available at once. Lower "
                "the goal, or give devices more time in [devices.availability]."
            )
        return self.opening_at(at_s, out)

    def opening_at(self, at_s: float, out: Sequence[int] = ()) -> Opening:
        """The opening at this time, with the devices that are there; those of `out` never are."""
        if self._watch is None:
            return Opening(at_s, None, np.empty(0))
        there, changes = self._watch.look(at_s)
        places = list(out)
        there[places], changes[places] = False, np.inf
        return Opening(at_s, there, changes)


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
    """Play one round; for many rounds use a `Clock`.

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
