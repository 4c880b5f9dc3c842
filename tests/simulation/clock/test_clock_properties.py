"""A played round is a pure function with the server's decisions, for any devices.

The witness is a plain simulation that reports every arrival and departure of every device to the
engine at its time. It shares no code with the clock except the devices' numbers.
"""

from dataclasses import dataclass, field
from math import inf

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedloom.protocol.errors import UsageError
from fedloom.server.engine import (
    Attended,
    ClientFailed,
    Left,
    Offer,
    OfferAccepted,
    OfferDeclined,
    Phase,
    Round,
    RoundConfig,
    RoundState,
    UpdateAccepted,
    UpdateRefused,
    Wake,
    uniform,
)
from fedloom.simulation.clock.devices import Devices, Load
from fedloom.simulation.clock.round_clock import Clock, play
from fedloom.simulation.data.population import numbered

CLIENTS = 12


@st.composite
def tables(draw):
    """Settings of devices, from reliable to unusable."""
    table = {
        "compute_examples_per_s": {"distribution": "lognormal", "median": 10.0, "sigma": 0.8},
        "download_mbit_s": {"distribution": "uniform", "low": 1.0, "high": 50.0},
        "upload_mbit_s": 4.0,
        "drop_out": draw(st.sampled_from([0.0, 0.1, 0.6])),
        "failure": draw(st.sampled_from([0.0, 0.2, 0.7])),
        "jitter": draw(st.sampled_from([0.0, 0.5])),
    }
    if draw(st.booleans()):
        on_s, off_s = draw(st.sampled_from([(20.0, 20.0), (5.0, 40.0), (100.0, 10.0)]))
        table["availability"] = {
            "on_s": {"distribution": "exponential", "mean": on_s, "min": 0.5},
            "off_s": {"distribution": "exponential", "mean": off_s, "min": 0.5},
        }
    return table


@st.composite
def configs(draw):
    """Rounds for which twelve clients are enough."""
    goal = draw(st.integers(1, 6))
    return RoundConfig(
        goal=goal,
        over_selection=draw(st.sampled_from([1.0, 1.3, 2.0])),
        quorum=draw(st.integers(1, goal)),
        deadline_s=draw(st.sampled_from([3.0, 15.0, 40.0, 400.0])),
        patience_s=draw(st.sampled_from([0.0, 4.0, 60.0])),
    )


games = given(
    config=configs(),
    table=tables(),
    seed=st.integers(0, 2**31),
    refused=st.frozensets(st.sampled_from(numbered(CLIENTS)), max_size=4),
)


def load():
    """10 to 120 examples, 1 MB down, 0.5 MB up."""
    trained = np.arange(1, CLIENTS + 1) * 10
    return Load(trained=trained, download_bytes=1_000_000, upload_bytes=500_000)


def clock_of(table, seed):
    """The population."""
    return Clock(numbered(CLIENTS), Devices.build(table, CLIENTS, seed))


@dataclass
class Witness:
    """Plays a round event by event."""

    names: list
    devices: Devices
    round: Round
    refused: frozenset
    work_s: np.ndarray
    declines: object
    fails_at: object
    now: float = 0.0
    agenda: list = field(default_factory=list)
    left_s: dict = field(default_factory=dict)
    accepted: list = field(default_factory=list)

    def tell(self, event):
        """Give the engine an event and perform its effects."""
        declining = []
        for effect in self.round.handle(event, self.now):
            if isinstance(effect, Offer):
                place = self.names.index(effect.client)
                if self.declines is not None and self.declines[place]:
                    declining.append(effect.client)
                else:
                    self.begin(place)
        return declining

    def tell_all(self, event):
        """Give the engine events, and let clients that decline do so, in order."""
        declining = self.tell(event)
        while declining:
            declining += self.tell(OfferDeclined(declining.pop(0)))

    def begin(self, place):
        """Start a task, or resume it."""
        self.tell(OfferAccepted(self.names[place]))
        part = 1.0 if self.fails_at is None else min(1.0, self.fails_at[place])
        self.left_s.setdefault(place, float(self.work_s[place] * part))
        self.agenda.append((self.now + self.left_s[place], "ends", place))

    def ends(self, place):
        """The work is finished or has failed."""
        name = self.names[place]
        if self.fails_at is not None and self.fails_at[place] < 1:
            self.tell_all(ClientFailed(name))
        elif name in self.refused:
            self.tell_all(UpdateRefused(name))
        else:
            self.accepted.append((name, self.now))
            self.tell_all(UpdateAccepted(name))

    def comes(self, place):
        """A device becomes available."""
        self.agenda.append((self.next_change(place), "goes", place))
        self.tell_all(Attended(self.names[place]))

    def goes(self, place):
        """A device becomes unavailable; its work is paused."""
        self.agenda.append((self.next_change(place), "comes", place))
        for entry in [e for e in self.agenda if e[1:] == ("ends", place)]:
            self.left_s[place] = entry[0] - self.now
            self.agenda.remove(entry)
        self.tell_all(Left(self.names[place]))

    def next_change(self, place):
        """The time of the next change after now."""
        availability = self.devices.availability
        return inf if availability is None else availability.next_change(place, self.now)

    def play(self):
        """Play until the round is over."""
        self.tell_all(Wake())
        while self.round.state in (RoundState.SELECTING, RoundState.REPORTING):
            wake = (self.round.wake_at if self.round.wake_at is not None else inf, "~wake", -1)
            self.now, what, place = chosen = min([*self.agenda, wake])
            if what == "~wake":
                self.tell_all(Wake())
            else:
                self.agenda.remove(chosen)
                getattr(self, what)(place)


def witnessed(config, table, seed, refused):
    """The same round, event by event."""
    devices, names = Devices.build(table, CLIENTS, seed), numbered(CLIENTS)
    there = np.ones(CLIENTS, bool)
    if devices.availability is not None:
        there, _ = devices.availability.look(0.0)
    declines, fails_at = devices.declines(5), devices.fails_at(5)
    witness = Witness(
        names,
        devices,
        Round(
            config,
            select=uniform(seed, 5),
            now=0.0,
            available=[name for name, is_there in zip(names, there, strict=True) if is_there],
        ),
        refused,
        [devices.work_times(load(), 5).seconds(place) for place in range(CLIENTS)],
        declines and declines(np.arange(CLIENTS)),
        fails_at and fails_at(np.arange(CLIENTS)),
    )
    for place in range(CLIENTS):
        change = witness.next_change(place)
        if change < inf:
            witness.agenda.append((change, "goes" if there[place] else "comes", place))
    witness.play()
    return witness


@pytest.mark.long
@games
@example(
    config=RoundConfig(goal=2, quorum=2, deadline_s=15.0, patience_s=4.0),
    table={
        "compute_examples_per_s": {"distribution": "lognormal", "median": 10.0, "sigma": 0.8},
        "download_mbit_s": {"distribution": "uniform", "low": 1.0, "high": 50.0},
        "upload_mbit_s": 4.0,
        "drop_out": 0.6,
        "failure": 0.2,
        "jitter": 0.0,
        "availability": {
            "on_s": {"distribution": "exponential", "mean": 20.0, "min": 0.5},
            "off_s": {"distribution": "exponential", "mean": 20.0, "min": 0.5},
        },
    },
    seed=4627325,
    refused=frozenset(),
).via("devices that come delay the end of a round without hope")
@settings(max_examples=400)
def test_the_clock_decides_like_an_engine_fed_event_by_event(config, table, seed, refused):
    try:
        game = clock_of(table, seed).play(
            config, select=uniform(seed, 5), round_number=5, load=load(), refused=refused
        )
    except UsageError:  # so many are never available at once
        return
    witness = witnessed(config, table, seed, refused)
    assert game.cohort == tuple(witness.round.cohort.phases)
    assert list(zip(game.accepted, game.accepted_s, strict=True)) == witness.accepted
    assert game.end_s == witness.now
    assert game.counts == witness.round.cohort.counts()
    assert game.reason == witness.round.reason


@games
def test_a_round_keeps_its_invariants(config, table, seed, refused):
    clock = clock_of(table, seed)
    try:
        game = clock.play(
            config, select=uniform(seed, 5), round_number=5, load=load(), refused=refused
        )
    except UsageError:
        return
    if game.state is RoundState.COMMITTED:
        assert config.quorum <= len(game.accepted) <= config.goal
    else:
        assert game.reason
        assert len(game.accepted) < config.quorum
    assert game.counts[Phase.REPORTED] == len(set(game.accepted)) == len(game.accepted)
    assert set(game.accepted) <= set(game.cohort) - refused
    assert [clock.names[place] for place in game.places] == list(game.accepted)
    assert sum(game.counts.values()) == len(game.cohort)
    times = [game.start_s, game.opened_s, *game.accepted_s, game.end_s]
    assert times == sorted(times)
    assert game.end_s <= game.opened_s + config.deadline_s


@pytest.mark.long
@games
def test_playing_is_a_pure_function(config, table, seed, refused):
    """Earlier rounds, repetitions and other clocks change nothing."""

    def one(clock, number):
        try:
            return clock.play(
                config, select=uniform(seed, number), round_number=number, load=load(),
                start_s=7.0 * number, refused=refused,
            )  # fmt: skip
        except UsageError as error:
            return str(error)

    clock = clock_of(table, seed)
    forward = [one(clock, number) for number in range(3)]
    assert [one(clock, number) for number in reversed(range(3))][::-1] == forward
    assert one(clock_of(table, seed), 2) == forward[2]


@given(order=st.permutations(range(CLIENTS)), seed=st.integers(0, 2**31), config=configs())
def test_the_order_of_the_clients_does_not_matter(order, seed, config):
    draw = np.random.default_rng(seed)
    example_s, speeds = draw.exponential(0.1, CLIENTS), draw.exponential(1e6, CLIENTS)

    def game(places):
        devices = Devices(
            seed=0, example_s=example_s[places], download=speeds[places], upload=speeds[places],
            drop_out=(draw_out := np.arange(CLIENTS) % 5 == 0).astype(float)[places],
            failure=np.zeros(CLIENTS),
        )  # fmt: skip
        assert draw_out.any()
        names = [numbered(CLIENTS)[place] for place in places]
        trained = Load(trained=load().trained[places], download_bytes=10**6, upload_bytes=10**6)
        found = play(
            config, select=uniform(seed, 1), names=names, devices=devices, round_number=1,
            load=trained,
        )  # fmt: skip
        return found.cohort, found.accepted, found.accepted_s, found.end_s, found.counts

    assert game(np.array(order)) == game(np.arange(CLIENTS))
