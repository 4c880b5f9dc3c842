"""A round whose members are sites: each sums the updates of its devices, and these are counted.

Goal, quorum and over-selection are in devices. A site is asked for as many as it is registered for,
or as the round still has places for; what it does not use is free again once it has reported.
Where sites hold masking sessions, each is asked for the devices of a smallest session at least.

Invariant: the devices that members may still send and those accepted are at most the cohort's size,
and where sites hold sessions at most `least` - 1 more, which the sums have room for.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

from . import events, steps
from .cohort import Cohort, Phase
from .config import RoundConfig
from .effects import Offer, Opened, RoundEffect
from .round import Round
from .selection import Select
from .states import RoundState


class SiteCohort(Cohort):
    """Sites with their places, which are counted in place of members.

    Attributes:
        places: site to the devices that it may send.
        sent: site to the devices in its sum, once it is accepted.
    """

    __slots__ = ("places", "sent")

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, int] = {}
        self.sent: dict[str, int] = {}

    def places_of(self, client: str) -> int:
        """Devices that a member may send."""
        return self.places[client]

    @property
    def accepted(self) -> int:
        """Devices in the sums accepted so far."""
        return sum(self.sent[c] for c, p in self._phases.items() if p is Phase.REPORTED)

    @property
    def at_work(self) -> int:
        """Places of the sites that the round waits for."""
        return sum(self.places[client] for client in self._phases if self.is_at_work(client))

    @property
    def possible(self) -> int:
        """Devices that count or may still: accepted, or places of sites at work or lost."""
        lost = sum(self.places[c] for c, p in self._phases.items() if p is Phase.LOST)
        return self.accepted + self.at_work + lost


class SiteRound(Round):
    """One round of sites.

    Attributes:
        devices_of: returns for how many devices a site is registered; the driver sets it.
        least: fewest devices for which a site is asked; candidates are registered for so many.
    """

    __slots__ = ("devices_of", "least")

    cohort: SiteCohort

    def __init__(
        self,
        config: RoundConfig,
        *,
        select: Select,
        now: float,
        devices_of: Callable[[str], int],
        least: int = 1,
        available: Iterable[str] = (),
    ) -> None:
        """Begin to select at `now` in monotonic seconds; the arguments are those of a `Round`."""
        super().__init__(config, select=select, now=now, available=available)
        self.cohort = SiteCohort()
        self.devices_of = devices_of
        self.least = least

    @classmethod
    def rebuild(
        cls,
        config: RoundConfig,
        *,
        select: Select,
        devices_of: Callable[[str], int],
        state: RoundState,
        cohort: Mapping[str, Phase],
        places: Mapping[str, int],
        accepted: Mapping[str, int],
        deadline_left_s: float,
        now: float,
        least: int = 1,
        available: Iterable[str] = (),
        paused: bool = False,
        reasons: Mapping[str, str] | None = None,
    ) -> "SiteRound":
        """Continue a round after a restart, as `Round.restore` does.

        Args:
            config: the settings.
            select: draws replacements.
            devices_of: as before.
            state: REPORTING or CLOSING.
            cohort: site to the phase last stored, in the order of joining.
            places: site to the devices that it may send.
            accepted: site to the devices in its sum, where that is durable.
            deadline_left_s: seconds to the deadline.
            now: monotonic seconds.
            least: as before.
            available: sites that are idle already.
            paused: whether the round stays paused.
            reasons: of the members that failed, were refused or declined, as text.

        Raises:
            IntegrityError: the stored round contradicts itself.
        """
        idle = set(available) - cohort.keys()
        self = cls(
            config, select=select, devices_of=devices_of, least=least, now=now, available=idle
        )
        self.cohort.places.update(places)
        self.cohort.sent.update(accepted)
        self._continue(state, cohort, accepted, deadline_left_s, reasons or {})
        most = config.cohort_size + least - 1
        self._places = max(config.goal, min(sum(places.values()), most))
        if paused and state is RoundState.REPORTING:
            self.clock.pause()
        return self

    @property
    def spare(self) -> int:
        """Devices of the idle sites."""
        return self._devices(self.candidates)

    def _devices(self, sites: Iterable[str]) -> int:
        return sum(map(self.devices_of, sites))

    def _open_if_ready(self, _: events.Wake | None = None) -> list[RoundEffect]:
        config, candidates, clock = self.config, self.candidates, self.clock
        usable = len(candidates) - self.set_aside()
        if clock.paused or usable <= 0 or self.spare < config.needed:
            return []
        drawn = candidates.take(usable)
        chosen = self._enough_of(drawn, config.cohort_size)
        for site in drawn:
            if site not in chosen:
                candidates.add(site)
        if sum(chosen.values()) < config.goal:  # the others are left to other runs
            for site in chosen:
                candidates.add(site)
            return []
        clock.deadline = clock.check_at = clock.now + config.deadline_s
        self.cohort.places.update(chosen)
        self.cohort.offer_all(chosen, clock.grace_until(config.answer_s))
        self._places = sum(chosen.values())
        self.state = RoundState.REPORTING
        return [Opened(tuple(chosen)), *map(Offer, chosen)]

    def _enough_of(self, drawn: Collection[str], most: int) -> dict[str, int]:
        """The first sites of a draw with so many devices in all, and the places of each.

        The last one may have more places than are left, those of `least` devices.
        """
        chosen: dict[str, int] = {}
        for site in drawn:
            left = most - sum(chosen.values())
            if left > 0:
                chosen[site] = min(self.devices_of(site), max(left, self.least))
        return chosen

    @property
    def free(self) -> int:
        """Places that may be given to other sites; fewer than `least` to none."""
        free = super().free
        return free if free >= self.least else 0

    def ask(self, client: str) -> Offer:
        """Add a site to the cohort, with the places that are free."""
        self.cohort.places[client] = max(1, min(self.devices_of(client), self.free))
        return super().ask(client)

    def _sum_came(self, event: events.UpdateAccepted) -> list[RoundEffect]:
        self.cohort.sent[event.client] = event.devices
        effects = self._reported(event)
        return effects or (steps.settle(self) if self.free > 0 else [])

    def _sum_came_in_commit(self, event: events.UpdateAccepted) -> list[RoundEffect]:
        self.cohort.sent[event.client] = event.devices
        return steps.reported_in_commit(self, event)

    TABLE: ClassVar[Mapping[RoundState, Mapping[type[Any], Any]]] = {
        **Round.TABLE,
        RoundState.SELECTING: {**Round.TABLE[RoundState.SELECTING], events.Wake: _open_if_ready},
        RoundState.REPORTING: {
            **Round.TABLE[RoundState.REPORTING],
            events.UpdateAccepted: _sum_came,
        },
        RoundState.CLOSING: {
            **Round.TABLE[RoundState.CLOSING],
            events.UpdateAccepted: _sum_came_in_commit,
        },
    }
