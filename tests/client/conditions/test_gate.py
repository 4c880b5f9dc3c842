"""The condition gate: it reads only what conditions need, and reports failed probes."""

import sys
import threading
from datetime import datetime

import pytest

from fedloom.client.conditions import ConditionGate, Conditions, gate
from fedloom.protocol.errors import UsageError
from fedloom.protocol.v1 import fleet_pb2
from support.patience import PATIENCE_S

OFFER = fleet_pb2.Task()


@pytest.fixture
def probes(monkeypatch, tmp_path):
    """A module with a custom probe."""
    (tmp_path / "own_probes.py").write_text("answer = None\ndef docked():\n    return answer()\n")
    monkeypatch.syspath_prepend(tmp_path)
    import own_probes

    yield own_probes
    del sys.modules["own_probes"]


def test_only_needed_readings_are_taken(tmp_path):
    """Idle CPU, for example, takes half a second to read."""
    read = ConditionGate(Conditions(temperature_below=50.0), tmp_path).read()
    assert set(read.why) == {"the temperature", "the battery"}
    zone = tmp_path / "sys/class/thermal/thermal_zone0"
    zone.mkdir(parents=True)
    (zone / "temp").write_text("51000")
    objecting = ConditionGate(Conditions(temperature_below=50.0), tmp_path)
    assert objecting.objection(OFFER) == "The temperature is 51.0 °C; the limit is 50 °C."
    (zone / "temp").write_text("49000")
    assert objecting.objection(OFFER) is None


def test_the_time_is_local_time():
    night = Conditions(windows=("22:00-06:00",))
    assert ConditionGate(night, clock=lambda: datetime(2026, 1, 1, 23)).objection(OFFER) is None
    noon = ConditionGate(night, clock=lambda: datetime(2026, 1, 1, 12)).objection(OFFER)
    assert noon == "It is Thu 12:00; training is allowed in 22:00-06:00."


def test_a_custom_probe_decides(probes):
    """True allows; a reason, or False, declines; an exception means unknown."""
    asked = ConditionGate(Conditions(probes=("own_probes:docked",)))
    probes.answer = lambda: True
    assert asked.objection(OFFER) is None
    probes.answer = lambda: "The robot is not docked."
    assert asked.objection(OFFER) == "The robot is not docked."
    probes.answer = lambda: 0
    assert "own_probes:docked" in asked.objection(OFFER)
    probes.answer = lambda: 1 / 0
    assert "ZeroDivisionError" in asked.objection(OFFER)


def test_a_probe_that_hangs_is_unknown_and_is_called_once(probes, monkeypatch):
    """Calls of it do not accumulate threads."""
    monkeypatch.setattr(gate, "PROBE_S", 0.01)
    release, begun, calls = threading.Event(), threading.Event(), []

    def hang():
        calls.append(1)
        begun.set()
        release.wait()
        return True

    probes.answer = hang
    asked = ConditionGate(Conditions(probes=("own_probes:docked",)))
    assert "no answer" in asked.objection(OFFER)
    assert "no answer" in asked.objection(OFFER)
    assert begun.wait(PATIENCE_S)
    assert len(calls) == 1
    release.set()


@pytest.mark.parametrize("name", ["nowhere:docked", "own_probes:undocked", "own_probes:answer"])
def test_a_missing_probe_is_an_error_of_the_settings(probes, name):
    """Raised before the first offer."""
    with pytest.raises(UsageError, match=r"The probe|a function"):
        ConditionGate(Conditions(probes=(name,)))
