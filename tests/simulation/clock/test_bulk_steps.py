"""What is handed to the engine many at a time is decided as one at a time, for rounds and buffers.

The witness is the clock itself with every such step switched off.
"""

import random
from dataclasses import fields
from unittest.mock import PropertyMock, patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.protocol.errors import UsageError
from fedloom.server.engine import BufferConfig, Round, RoundConfig, uniform
from fedloom.simulation.clock import playback
from fedloom.simulation.clock.buffer_clock import play_buffer
from fedloom.simulation.clock.devices import Devices, Load
from fedloom.simulation.clock.round_clock import Clock
from fedloom.simulation.data.population import numbered

EXPONENTIAL = {"distribution": "exponential", "min": 0.5}


def one_by_one():
    """The switches of all steps that handle many events at once."""
    return (
        patch.object(playback, "replace", lambda *_: None),
        patch.object(playback, "bears", lambda *_: False),
        patch.object(playback, "is_calm", lambda *_: False),
        patch.object(Round, "spare_reports", new_callable=PropertyMock, return_value=0),
    )


def population(draw, clients):
    """Devices from reliable to unusable; a third of them with whole seconds, so many at once."""
    whole = draw.random() < 0.3
    table = {
        "compute_examples_per_s": 1 if whole else {"distribution": "uniform", "low": 5, "high": 50},
        "download_mbit_s": 8 if whole else {"distribution": "uniform", "low": 1, "high": 50},
        "upload_mbit_s": 8,
        "drop_out": draw.choice([0.0, 0.1, 0.6]),
        "failure": draw.choice([0.0, 0.2, 0.7]),
        "jitter": 0.0 if whole else draw.choice([0.0, 0.5]),
    }
    on_s, off_s = draw.choice([(20.0, 20.0), (5.0, 40.0), (100.0, 10.0), (0.0, 0.0)])
    if whole and on_s:
        table["availability"] = {"on_s": on_s, "off_s": off_s}
    elif on_s:
        table["availability"] = {"on_s": EXPONENTIAL | {"mean": on_s},
                                 "off_s": EXPONENTIAL | {"mean": off_s}}  # fmt: skip
    names = list(numbered(clients))
    if draw.random() < 0.5:
        draw.shuffle(names)  # places in the roster differ from those in the population
    return Clock(names, Devices.build(table, clients, seed=draw.randrange(2**31)))


def rounds(clock, draw):
    """Three rounds, one after the other."""
    goal, now, played = draw.randint(1, len(clock.names) // 3), 0.0, []
    config = RoundConfig(
        goal=goal, over_selection=draw.choice([1.0, 1.3, 2.0]), quorum=draw.randint(1, goal),
        deadline_s=draw.choice([3.0, 15.0, 40.0, 400.0]), patience_s=draw.choice([0.0, 4.0, 60.0]),
        replace=draw.random() < 0.8,
    )  # fmt: skip
    for number in range(3):
        play = clock.play(
            config, select=uniform(1, number), round_number=number, load=load(clock), start_s=now,
            refused=frozenset(draw.sample(clock.names, draw.choice([0, 4]))),
        )  # fmt: skip
        now = play.end_s
        played.append([repr(getattr(play, field.name)) for field in fields(play)])
    return played


def buffers(clock, draw):
    """Three buffers, with the work in flight between them."""
    goal, now, flight, played = draw.randint(1, len(clock.names) // 3), 0.0, None, []
    config = BufferConfig(
        goal=goal, concurrency=draw.randint(1, len(clock.names) // 2), quorum=draw.randint(1, goal),
        deadline_s=draw.choice([15.0, 40.0, 400.0]), patience_s=draw.choice([0.0, 4.0, 60.0]),
        max_staleness=draw.choice([0, 1, 4]),
    )  # fmt: skip
    for number in range(3):
        found = play_buffer(
            clock, config, select=uniform(1, number), number=number, load=load(clock),
            flight=flight, start_s=now,
            refused=frozenset((number, draw.randrange(len(clock.names))) for _ in range(3)),
        )  # fmt: skip
        flight, now = found.flight, found.play.end_s
        played.append([repr(getattr(found.play, field.name)) for field in fields(found.play)])
        played.append([repr(found.origins), repr(flight and flight.as_dict())])
    return played


def load(clock):
    """5 to 94 examples, 1 MB down, 0.5 MB up."""
    trained = np.arange(len(clock.names)) * 7 % 90 + 5
    return Load(trained=trained, download_bytes=1_000_000, upload_bytes=500_000)


def played(what, seed):
    """Everything about what is played, or the error."""
    draw = random.Random(seed)
    try:
        return what(population(draw, draw.choice([12, 40, 120])), draw)
    except UsageError as error:
        return str(error)


@pytest.mark.long
@pytest.mark.parametrize("what", [rounds, buffers])
@given(seed=st.integers(0, 2**31))
@settings(max_examples=300)
def test_steps_of_many_events_decide_as_one_at_a_time(what, seed):
    expected = []
    replace, bears, calm, spare = one_by_one()
    with replace, bears, calm, spare:
        expected = played(what, seed)
    assert played(what, seed) == expected


@pytest.mark.parametrize("seed", [13, 16, 322])
def test_a_buffer_whose_quorum_needs_idle_devices_ends_as_with_every_move_alone(seed):
    """One device works at a time and most fail, so each that comes or leaves may decide the end."""
    table = {
        "compute_examples_per_s": 1, "download_mbit_s": 8, "upload_mbit_s": 8, "failure": 0.7,
        "availability": {"on_s": 5.0, "off_s": 40.0},
    }  # fmt: skip
    clock = Clock(numbered(100), Devices.build(table, 100, seed=seed))
    config = BufferConfig(goal=15, concurrency=1, quorum=15, deadline_s=400.0, patience_s=4.0)

    def buffer():
        found = play_buffer(
            clock, config, select=uniform(1, 1), number=1, load=load(clock), flight=None
        ).play
        return found.events, found.accepted_s, found.reason, found.end_s

    replace, bears, calm, spare = one_by_one()
    with replace, bears, calm, spare:
        expected = buffer()
    assert buffer() == expected
