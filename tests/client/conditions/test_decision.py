"""The decision whether a device may train, from readings."""

from datetime import datetime

import pytest

from fedloom.client.conditions import Conditions, Readings, objection
from fedloom.client.conditions.windows import TimeWindow
from fedloom.protocol.errors import UsageError

NOON = datetime(2026, 11, 18, 12, 0)  # a Wednesday


def said(conditions, training=False, **found):
    return objection(conditions, Readings(now=NOON, **found), training=training)


def test_without_conditions_there_is_no_objection():
    """Even without any reading."""
    assert said(Conditions()) is None
    assert not Conditions().are_any


def on_battery(charge):
    return {"mains": False, "charge": charge}


def moment(text):
    return datetime.strptime(f"2026-11-{text}", "%Y-%m-%d %H:%M")


@pytest.mark.parametrize(
    ("setting", "good", "bad", "words"),
    [
        ({"battery_above": 60.0}, {"mains": True}, on_battery(60.0), "charge"),
        (
            {"battery_above": 60.0},
            {"mains": False, "charge": 60.5},
            {"mains": False, "charge": 9},
            "9 %",
        ),
        (
            {"battery_above": 100.0},
            {"mains": True},
            {"mains": False, "charge": 100.0},
            "needs mains power.",
        ),
        ({"idle_cpu_above": 70.0}, {"idle_cpu": 70.0}, {"idle_cpu": 69.9}, "69.9 %"),
        ({"load_below": 0.5}, {"load": 0.4}, {"load": 0.5}, "the limit is 0.5"),
        ({"temperature_below": 70.0}, {"temperature": 69.0}, {"temperature": 70.0}, "70 °C"),
        ({"unmetered": True}, {"metered": False}, {"metered": True}, "metered"),
        ({"unmetered_interfaces": ("eth0",)}, {"metered": False}, {"metered": True}, "metered"),
        ({"probes": ("m:f",)}, {"own": {"m:f": True}}, {"own": {"m:f": "Undocked."}}, "Undocked."),
        ({"probes": ("m:f",)}, {"own": {"m:f": True}}, {"own": {"m:f": False}}, "m:f"),
        ({"windows": ("11:00-13:00",)}, {}, None, ""),
        ({"windows": ("sun", "13:00-12:00")}, None, {}, "Wed 12:00"),
    ],
)
def test_a_condition_decides_by_its_own_reading(setting, good, bad, words):
    """One reading passes, the other is declined with the reading in the message."""
    conditions = Conditions(**setting)
    assert conditions.are_any
    if good is not None:
        assert said(conditions, **good) is None
    if bad is not None:
        assert words in said(conditions, **bad)


@pytest.mark.parametrize(
    "setting",
    [
        {"battery_above": 60.0},
        {"idle_cpu_above": 70.0},
        {"load_below": 0.5},
        {"temperature_below": 70.0},
        {"unmetered": True},
        {"probes": ("m:f",)},
    ],
)
def test_a_missing_reading_declines_unless_unknown_is_allowed(setting):
    """The message has the probe's reason, and what to do."""
    name = "m:f" if "probes" in setting else None
    sentence = said(Conditions(**setting), why={name: "it raised"} if name else {})
    assert "Cannot read" in sentence
    assert 'conditions.unknown = "allow"' in sentence
    assert name is None or "it raised" in sentence
    assert said(Conditions(**setting, unknown="allow")) is None


def test_a_battery_of_unknown_charge_is_not_a_full_one():
    """On battery, a missing charge declines."""
    assert "the battery" in said(Conditions(battery_above=60.0), mains=False)


def test_the_load_of_the_training_itself_does_not_end_it():
    """The other conditions still apply."""
    busy = Conditions(load_below=0.5, temperature_below=70.0)
    assert said(busy, load=4.0, temperature=50.0, training=True) is None
    assert said(busy, load=4.0, temperature=90.0, training=True) is not None


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("22:00-06:00", ["18 22:00", "19 05:59"], ["18 21:59", "18 06:00"]),
        ("wed 22:00-06:00", ["18 23:00", "19 05:59"], ["18 05:00", "19 22:00"]),
        ("sun 22:00-06:00", ["22 23:00", "23 05:00"], ["22 05:00", "23 22:00"]),
        ("mon-fri 09:00-17:00", ["20 09:00", "20 16:59"], ["21 12:00", "20 17:00"]),
        ("fri-mon", ["20 00:00", "23 23:59"], ["19 23:59", "24 00:00"]),
        ("sat,sun 00:00-24:00", ["21 00:00", "22 23:59"], ["20 23:59", "23 00:00"]),
        ("Sat Sun", ["21 12:00"], ["20 12:00"]),
    ],
)
def test_windows_are_exact_to_the_minute(text, inside, outside):
    """A window past midnight belongs to the day on which it begins."""
    window = TimeWindow.parse(text)
    assert [text for text in inside if not window.holds(moment(text))] == []
    assert [text for text in outside if window.holds(moment(text))] == []


@pytest.mark.parametrize(
    "text", ["", "night", "25:00-06:00", "22:00-22:00", "22:60-23:00", "mo 22:00-23:00", "10-12"]
)
def test_an_invalid_window_is_refused(text):
    """When the settings are read."""
    with pytest.raises(UsageError, match="Expected a window like"):
        Conditions(windows=(text,))


def test_an_invalid_probe_name_is_refused():
    with pytest.raises(UsageError, match="module:function"):
        Conditions(probes=("docked",))
