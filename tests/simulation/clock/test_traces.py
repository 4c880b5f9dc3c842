"""Traces are read as in FedScale, and no code in them is run."""

import json
import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation.clock.traces import Behaviour, Capacity, read_behaviour, read_capacity

CAPACITY = {432802: {"computation": 162.0, "communication": 5648.0}}
BEHAVIOUR = {
    1: {
        "duration": 60,
        "inactive": [40, 100],
        "finish_time": 120,
        "active": [10, 70],
        "model": "CPH1801",
    }
}


@pytest.fixture
def store(tmp_path):
    """Write an object or bytes to a file."""

    def do(content, protocol=4):
        path = tmp_path / "trace"
        path.write_bytes(
            content if isinstance(content, bytes) else pickle.dumps(content, protocol=protocol)
        )
        return path

    return do


@pytest.mark.parametrize("protocol", range(6))
def test_a_capacity_is_in_milliseconds_and_kilobits(store, protocol):
    """162 ms of inference an example; 5,648 kbit/s are 706,000 bytes/s."""
    assert read_capacity(store(CAPACITY, protocol)) == [Capacity(0.162, 706_000.0)]


def test_a_behaviour_is_windows_in_a_cycle(store):
    assert read_behaviour(store(BEHAVIOUR)) == [Behaviour(((10.0, 40.0), (70.0, 100.0)), 120.0)]


def test_windows_beyond_the_cycle_are_ignored(store):
    entry = BEHAVIOUR[1] | {"active": [10, 70, 130], "inactive": [40, 125, 140]}
    (found,) = read_behaviour(store({1: entry}))
    assert found.windows == ((10.0, 40.0), (70.0, 120.0))


def test_json_traces_are_read(store):
    assert read_capacity(store(json.dumps(CAPACITY).encode())) == [Capacity(0.162, 706_000.0)]
    assert len(read_behaviour(store(json.dumps(BEHAVIOUR).encode()))) == 1


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, np.uint16])
def test_numpy_scalars_are_numbers(store, kind, protocol):
    trace = OrderedDict({1: {"computation": kind(50), "communication": kind(8)}})
    assert read_capacity(store(trace, protocol)) == [Capacity(0.05, 1000.0)]


class _Bomb:
    """Code that must not run when a trace is read."""

    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


@pytest.mark.parametrize(
    "content",
    [
        _Bomb(),
        {1: _Bomb()},
        {1: {"computation": Path("x"), "communication": 1.0}},
        {1: np.zeros(3)},
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
    ],
)
def test_nothing_but_plain_values_is_built(store, tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"plain dictionaries, lists, text and numbers, got"):
        read_capacity(store(content))
    assert not Path("exploded").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"not a trace", b"\x80\x04", {}, [1], {1: 2}, None])
def test_an_invalid_trace_is_refused(store, content):
    with pytest.raises(UsageError, match="trace"):
        read_behaviour(store(content))


def test_a_missing_trace_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"The trace .*gone cannot be read"):
        read_capacity(tmp_path / "gone")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"computation": 0.0}, "computation > 0"),
        ({"communication": -1.0}, "communication > 0"),
        ({"communication": float("nan")}, "communication as a finite number"),
        ({"computation": "fast"}, "computation as a finite number"),
        ({"computation": None}, "computation as a finite number"),
        ({"computation": True}, "computation as a finite number"),
    ],
)
def test_a_bad_capacity_is_refused(store, change, message):
    with pytest.raises(UsageError, match=f"{message}.*device 432802"):
        read_capacity(store({432802: CAPACITY[432802] | change}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"finish_time": 0}, "finish_time > 0"),
        ({"active": [10]}, "one second in inactive for each in active"),
        ({"active": [50, 70]}, "active 50 and inactive 40"),
        ({"active": [-1, 70]}, "active -1"),
        ({"active": None}, "active as a list"),
        ({"active": [10, "x"]}, "active as a finite number"),
    ],
)
def test_a_bad_behaviour_is_refused(store, change, message):
    with pytest.raises(UsageError, match=f"{message}.*device 1"):
        read_behaviour(store({1: BEHAVIOUR[1] | change}))
