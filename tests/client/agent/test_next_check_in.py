"""When a device connects next: as told, after an outage, and after a restart of its agent."""

import json

import pytest

from fedloom.client.agent.next_check_in import FILE, LATE_S, LONGEST_S, NextCheckIn


class Clocks:
    """A wall clock that people set, and one that they do not."""

    def __init__(self, now=1_000_000.0):
        self.wall, self.boot = now, 50.0

    def passes(self, seconds):
        self.wall += seconds
        self.boot += seconds


@pytest.fixture
def clocks():
    return Clocks()


@pytest.fixture
def begun(tmp_path, clocks):
    """Starts an agent's `NextCheckIn`; the jitter is a share of what is allowed."""

    def begin(share=0.25):
        return NextCheckIn(
            tmp_path, lambda most: share * most, lambda: clocks.wall, lambda: clocks.boot
        )

    return begin


def test_a_new_device_comes_at_once_and_then_when_told(begun, clocks):
    due = begun()
    assert due.left_s() == 0
    due.attends()
    due.told(7200.0)
    clocks.passes(7000.0)
    assert due.left_s() == pytest.approx(200.0)
    clocks.passes(500.0)
    assert due.left_s() == 0


def test_a_restarted_agent_does_not_come_early(begun, clocks):
    begun().told(7200.0)
    clocks.passes(1200.0)
    clocks.boot = 3.0  # the device was restarted, too
    assert begun().left_s() == pytest.approx(6000.0)


def test_an_agent_that_was_killed_while_connected_comes_back_at_once(begun, clocks):
    """It may have a task, which its round waits for."""
    due = begun()
    due.told(7200.0)
    clocks.passes(7200.0)
    due.attends()
    clocks.passes(3.0)
    again = begun()
    assert again.left_s() == 0
    assert again.lost()  # it knows what it was told before
    assert again.left_s() == pytest.approx(0.25 * 7200.0)


def test_after_an_outage_a_device_waits_with_full_jitter(begun):
    """Over what it was told; one that was told nothing connects as any other."""
    due = begun(share=1.0)
    assert not due.lost()
    assert due.left_s() == 0
    due.told(7200.0)
    assert due.lost()
    assert due.left_s() == pytest.approx(7200.0)


def test_an_overdue_agent_starts_with_jitter(begun, clocks):
    """Devices that were all off do not come at the same moment; nor do they wait for hours."""
    begun().told(7200.0)
    clocks.passes(10**6)
    assert begun(share=1.0).left_s() == pytest.approx(LATE_S)
    clocks.passes(10**6)
    assert begun(share=0.1).left_s() == pytest.approx(0.1 * LATE_S)


def test_a_clock_that_was_set_back_does_not_keep_a_device_away(begun, clocks):
    begun().told(7200.0)
    clocks.wall -= 10**8
    assert begun(share=1.0).left_s() <= LATE_S


def test_a_clock_that_is_set_while_the_agent_waits_changes_nothing(begun, clocks):
    due = begun()
    due.told(7200.0)
    clocks.wall += 10**8
    assert due.left_s() == pytest.approx(7200.0)


@pytest.mark.parametrize(
    ("told", "waits"),
    [(-5.0, 1.0), (0.0, 1.0), (1e300, LONGEST_S), (float("inf"), LONGEST_S),
     (float("nan"), LONGEST_S)],
)  # fmt: skip
def test_whatever_the_server_says_is_bounded(begun, told, waits):
    due = begun()
    due.told(told)
    assert due.left_s() == pytest.approx(waits)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"due_at": "x"}', '{"due_at": 1e999}', "\0"])
def test_a_broken_file_is_as_none(begun, tmp_path, text):
    (tmp_path / FILE).write_text(text)
    assert begun().left_s() == 0


def test_a_disk_that_cannot_be_written_ends_no_agent(begun, tmp_path):
    due = begun()
    (tmp_path / FILE).mkdir()
    due.told(60.0)
    assert due.left_s() == pytest.approx(60.0)


def test_the_file_says_when_and_what(begun, tmp_path, clocks):
    begun().told(60.0)
    assert json.loads((tmp_path / FILE).read_text()) == {
        "due_at": clocks.wall + 60.0, "told_s": 60.0,
    }  # fmt: skip
