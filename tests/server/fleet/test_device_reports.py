"""Readings of devices: every value is checked, and only the latest ones are kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.client.conditions.readings import MAX_GPUS as MOST_SENT
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.v1.fleet_pb2 import DeviceReport, Gpu, Memory
from fedloom.server.fleet import device_reports
from fedloom.server.fleet.device_reports import MAX_GPUS, DeviceReports, read

GIB = 1 << 30
WHOLE = DeviceReport(
    cpu=40.0, memory=Memory(used_bytes=3 * GIB, total_bytes=8 * GIB), temperature=61.5,
    battery=80.0, mains=True,
    gpus=[Gpu(name="GPU", busy=9.0, memory=Memory(used_bytes=1, total_bytes=2), temperature=50.0)],
)  # fmt: skip


def test_a_whole_report():
    found = read(WHOLE, 5.0)
    assert (found.at, found.cpu, found.temperature, found.battery) == (5.0, 40.0, 61.5, 80.0)
    assert (found.memory_used_bytes, found.memory_total_bytes) == (3 * GIB, 8 * GIB)
    assert found.mains is True
    [gpu] = found.gpus
    assert (gpu.name, gpu.busy, gpu.memory_used_bytes, gpu.temperature) == ("GPU", 9.0, 1, 50.0)


def test_an_empty_report_has_no_readings():
    """Absent is not zero."""
    found = read(DeviceReport(), 5.0)
    assert (found.cpu, found.memory_total_bytes, found.battery, found.mains) == (None,) * 4
    assert found.gpus == ()


@pytest.mark.parametrize(
    "bad",
    [
        DeviceReport(cpu=float("nan")),
        DeviceReport(cpu=100.1),
        DeviceReport(cpu=-0.1),
        DeviceReport(temperature=float("inf")),
        DeviceReport(temperature=-101),
        DeviceReport(battery=1e308),
        DeviceReport(battery=float("-inf")),
        DeviceReport(memory=Memory(used_bytes=2, total_bytes=1)),
        DeviceReport(memory=Memory()),
        DeviceReport(memory=Memory(used_bytes=1, total_bytes=2**64 - 1)),
        DeviceReport(gpus=[Gpu(name="x")] * (MAX_GPUS + 1)),
        DeviceReport(gpus=[Gpu(name="x" * 81)]),
        DeviceReport(gpus=[Gpu(busy=float("nan"))]),
        DeviceReport(gpus=[Gpu(temperature=301)]),
        DeviceReport(gpus=[Gpu(memory=Memory(used_bytes=2, total_bytes=1))]),
    ],
    ids=str,
)
def test_hostile_values_are_refused(bad):
    """The earlier report stays."""
    reports = DeviceReports()
    reports.put("oak", WHOLE)
    with pytest.raises(Refusal, match="Expected a device report with") as caught:
        reports.put("oak", bad)
    assert caught.value.code is Code.MALFORMED
    assert reports.get("oak").cpu == 40.0


def test_a_gpus_name_has_no_control_characters():
    [gpu] = read(DeviceReport(gpus=[Gpu(name="a\x1b[31m\nb")]), 0.0).gpus
    assert gpu.name.isprintable()


def test_an_honest_device_sends_no_more_gpus_than_are_taken():
    assert MOST_SENT <= MAX_GPUS


@given(
    st.floats(), st.floats(), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.floats()
)  # fmt: skip
def test_a_report_is_read_if_all_values_are_in_their_ranges(cpu, heat, used, total, battery):
    memory = Memory(used_bytes=used, total_bytes=total)
    message = DeviceReport(cpu=cpu, temperature=heat, memory=memory, battery=battery)
    fits = 0 <= cpu <= 100 and -100 <= heat <= 300 and 0 <= battery <= 100
    if fits and used <= total and 0 < total <= 2**60:
        found = read(message, 0.0)
        assert (found.cpu, found.temperature, found.battery) == (cpu, heat, battery)
    else:
        with pytest.raises(Refusal):
            read(message, 0.0)


def test_the_devices_that_reported_first_are_dropped_at_the_limit(monkeypatch):
    """A device that reports again is not among them."""
    monkeypatch.setattr(device_reports, "MOST", 3)
    reports = DeviceReports()
    for name in ("a", "b", "c", "a", "d"):
        reports.put(name, WHOLE)
    assert [name for name in "abcd" if reports.get(name)] == ["a", "c", "d"]


def test_only_fresh_reports_of_connected_clients_count_in_metrics(monkeypatch):
    """The owner of the other device may have withdrawn its readings."""
    reports = DeviceReports()
    for at, name in ((100.0, "old"), (190.0, "new"), (190.0, "gone")):
        monkeypatch.setattr(device_reports.time, "time", lambda at=at: at)
        reports.put(name, WHOLE)
    assert [each.at for each in reports.of(["old", "new", "none"], 180.0)] == [190.0]
