"""Played rounds stay the same to the last bit: digests of a thousand devices' rounds.

The digests were computed when every event was handed to the engine one by one; rounds are played in
larger steps since. They cover names, order, phases and times. Distributions without transcendental
functions give the same doubles on every machine; times with jitter are compared to nine digits.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import fields

import numpy as np
import pytest

from fedloom.server.engine import BufferConfig, RoundConfig, SampledConfig, uniform
from fedloom.simulation.clock.buffer_clock import play_buffer
from fedloom.simulation.clock.devices import Devices, Load
from fedloom.simulation.clock.round_clock import Clock
from fedloom.simulation.data.population import numbered

CLIENTS = 1000

SPEEDS = {
    "compute_examples_per_s": {"distribution": "uniform", "low": 20, "high": 200},
    "download_mbit_s": {"distribution": "uniform", "low": 2, "high": 50},
    "upload_mbit_s": 5,
}
TROUBLE = SPEEDS | {"drop_out": 0.1, "failure": 0.2}
ABSENT = TROUBLE | {
    "availability": {
        "on_s": {"distribution": "uniform", "low": 10, "high": 200},
        "off_s": {"distribution": "uniform", "low": 5, "high": 300},
    }
}
RARE = ABSENT | {"availability": {"on_s": 20, "off_s": 200}}
JITTER = TROUBLE | {"jitter": 0.3}

PLAIN = {"goal": 100, "over_selection": 1.3, "quorum": 50, "deadline_s": 120.0}
ROUNDS = {
    "always there": (SPEEDS, PLAIN, "0970930be0cd"),
    "drop out and fail": (TROUBLE, PLAIN, "6e99c307238b"),
    "come and go": (ABSENT, PLAIN, "334e03fb2101"),
    "come and go, short patience": (ABSENT, PLAIN | {"patience_s": 2.0}, "4fae1e3b67cd"),
    "no replacements": (ABSENT, PLAIN | {"replace": False}, "7428eb8f19b5"),
    "many candidates": (ABSENT, PLAIN | {"candidates": 430}, "d6c84c890dbf"),
    "too short a deadline": (ABSENT, PLAIN | {"deadline_s": 8.0, "quorum": 90}, "dbf0a5197f07"),
    "nobody to spare": (RARE, PLAIN | {"patience_s": 5.0, "goal": 90}, "a6147b317af8"),
    "everybody is asked": (TROUBLE, PLAIN | {"goal": 900, "over_selection": 1.1}, "a6e010fb0822"),
    "out of reach": (
        TROUBLE | {"failure": 0.9},
        PLAIN | {"goal": 900, "quorum": 800},
        "d7248feb28a4",
    ),
}


def load(kind):
    """600 examples and 4 MB; or of each device its own; or an upload of each device's own size."""
    if kind == 0:
        trained = np.full(CLIENTS, 600)
        return Load(trained=trained, download_bytes=4_000_000, upload_bytes=4_000_000)
    sizes = np.arange(CLIENTS, dtype=np.int64) % 700 + 20
    if kind == 1:
        down, up = sizes * 7000, sizes * 5000.0
        return Load(trained=sizes, evaluated=sizes // 5, download_bytes=down, upload_bytes=up)
    return Load(
        trained=sizes, download_bytes=4_000_000, upload_bytes=lambda place: 1_000_000 + 999 * place
    )


def text(play, digits=None):
    """Everything that a played round says."""

    def exact(value):
        if isinstance(value, Mapping):
            return exact(list(value.items()))
        if isinstance(value, float):
            return value.hex() if digits is None else f"{value:.{digits}g}"
        if isinstance(value, list | tuple):
            return [exact(item) for item in value]
        return str(value)

    return repr([(field.name, exact(getattr(play, field.name))) for field in fields(play)])


def digest(texts):
    """The first twelve digits."""
    return hashlib.blake2b("\n".join(texts).encode()).hexdigest()[:12]


def rounds_of(table, config, digits=None):
    """Nine rounds, one after the other, some updates refused and some clients excluded."""
    clock = Clock(numbered(CLIENTS), Devices.build(table, CLIENTS, seed=3))
    now, texts = 7.5, []
    for number in range(9):
        bad = frozenset(clock.names[number::41]) if number % 3 == 1 else frozenset()
        out = frozenset(clock.names[number::53]) if number % 4 == 2 else frozenset()
        play = clock.play(
            config, select=uniform(1, number), round_number=number, load=load(number % 3),
            start_s=now, refused=bad, excluded=out,
        )  # fmt: skip
        texts.append(text(play, digits))
        now = play.end_s
    return digest(texts)


def buffers_of(table):
    """Nine buffers, with the work in flight between them."""
    clock = Clock(numbered(CLIENTS), Devices.build(table, CLIENTS, seed=3))
    config = BufferConfig(goal=40, concurrency=120, quorum=10, deadline_s=90.0, max_staleness=4)
    now, flight, texts = 7.5, None, []
    for number in range(9):
        bad = frozenset((number - 1, place) for place in range(0, CLIENTS, 37))
        played = play_buffer(
            clock, config, select=uniform(1, number), number=number, load=load(number % 3),
            flight=flight, start_s=now, refused=bad if number % 3 == 1 else frozenset(),
        )  # fmt: skip
        flight, now = played.flight, played.play.end_s or 0.0
        texts += [text(played.play), repr(played.origins), repr(flight and flight.as_dict())]
    return digest(texts)


@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_are_those_of_every_event_alone(name):
    table, settings, expected = ROUNDS[name]
    assert rounds_of(table, RoundConfig(**settings)) == expected


def test_rounds_with_jitter_are_those_of_every_event_alone():
    """To nine digits: logarithms differ in the last bit between machines."""
    assert rounds_of(JITTER, RoundConfig(**PLAIN), digits=9) == "7e75735c6dfe"


@pytest.mark.parametrize(("coins", "expected"), [(False, "d19c7a5f6c7e"), (True, "c5b10a0676fa")])
def test_sampled_rounds_are_those_of_every_event_alone(coins, expected):
    config = SampledConfig(goal=100, coins=coins, quorum=0, replace=False, deadline_s=60.0)
    assert rounds_of(ABSENT, config) == expected


@pytest.mark.parametrize(
    ("table", "expected"),
    [(SPEEDS, "6fa0fe10ed4e"), (TROUBLE, "7b939cc174f5"), (ABSENT, "44487d970de1")],
)
def test_buffers_are_those_of_every_event_alone(table, expected):
    assert buffers_of(table) == expected
