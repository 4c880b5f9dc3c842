"""Alerts: conditions that need an operator, and others that do not."""

from dataclasses import replace

from fedloom.server.insight.health import Facts, Level, assess
from fedloom.server.ledger.rows import ClientRow, RefusalCount

NOW = 1_000_000.0


def _run(**more):
    """A healthy run with an open round."""
    live = {
        "number": 4, "state": "reporting", "paused": False, "available": 0, "accepted": 1,
        "goal": 5, "quorum": 3, "deadline_left_s": 500.0,
    }  # fmt: skip
    live |= more.pop("live", {})
    rounds = [
        {"number": 4, "state": "reporting", "reason": "", "cause": None, "closed_at": None,
         "opened_at": NOW - 100, "deadline_at": NOW + 500},
        {"number": 3, "state": "committed", "reason": "", "cause": None, "closed_at": NOW - 101,
         "opened_at": NOW - 200, "deadline_at": NOW - 50},
    ]  # fmt: skip
    return {
        "id": "ward-1", "state": "running", "reason": "", "committed": 3, "created_at": NOW - 1000,
        "rounds": rounds, "live": {"round": live}, **more,
    }  # fmt: skip


def _facts(*runs, **more):
    return Facts(now=NOW, active=runs, **{"clients_online": 6, "clients_enrolled": 6, **more})


def _only(health):
    [alert] = health.alerts
    return alert


def test_healthy_run_raises_nothing():
    health = assess(_facts(_run()))
    assert (health.level, health.alerts) == (Level.OK, [])


def test_server_without_runs_is_idle():
    assert assess(_facts()).level is Level.IDLE


def test_round_near_its_deadline_below_its_quorum_is_urgent():
    """Not from the start of the round."""
    late = _run(live={"deadline_left_s": 40.0})
    alert = _only(assess(_facts(late)))
    assert alert.level is Level.BAD
    assert "abandoned in 40 s: 1 of the 3 updates" in alert.what
    assert "Extend" in alert.todo
    enough = _run(live={"deadline_left_s": 40.0, "accepted": 3})
    assert not assess(_facts(enough)).alerts


def test_paused_run_has_its_reason():
    """Such as a run that paused itself after three abandoned rounds."""
    alert = _only(assess(_facts(_run(state="paused", reason="3 rounds abandoned in a row"))))
    assert "3 rounds abandoned in a row" in alert.what
    assert "Resume" in alert.todo


def test_abandoned_round_is_reported_until_one_is_committed():
    """With its reason."""
    lost = {"number": 3, "state": "abandoned", "reason": "too few updates", "cause": "quorum",
            "closed_at": NOW - 9, "opened_at": NOW - 20, "deadline_at": NOW}  # fmt: skip
    run = _run()
    broken = {**run, "rounds": [run["rounds"][0], lost]}
    alert = _only(assess(_facts(broken)))
    assert "too few updates" in alert.what
    assert alert.link == "/runs/ward-1/rounds/3"
    mended = {**run, "rounds": [run["rounds"][0], {**run["rounds"][1], "number": 5}, lost]}
    assert not assess(_facts(mended)).alerts


def test_round_aborted_by_an_operator_is_no_alert():
    """It raises, counts in and ends no alert."""
    lost = {"number": 3, "state": "abandoned", "reason": "too few updates", "cause": "quorum",
            "closed_at": NOW - 9, "opened_at": NOW - 20, "deadline_at": NOW}  # fmt: skip
    dropped = {**lost, "number": 4, "reason": "wrong data", "cause": "stopped"}
    run = _run()
    reporting, committed = run["rounds"]
    assert not assess(_facts({**run, "rounds": [dropped, dropped, committed]})).alerts
    alert = _only(assess(_facts({**run, "rounds": [reporting, dropped, lost, dropped]})))
    assert alert.what == "1 round was abandoned in ward-1: too few updates."
    assert alert.link == "/runs/ward-1/rounds/3"
    alert = _only(assess(_facts({**run, "rounds": [dropped, lost, lost, committed]})))
    assert alert.what.startswith("2 of the last 4 rounds were abandoned")


def test_run_that_waits_for_clients_has_the_missing_number():
    """After a minute, as rounds begin with a short wait."""
    waiting = _run(live={"state": "selecting", "available": 2, "deadline_left_s": None})
    assert "2 of 5 are available" in _only(assess(_facts(waiting))).what
    just_now = {**waiting, "rounds": [{**waiting["rounds"][1], "closed_at": NOW - 5}]}
    assert not assess(_facts(just_now)).alerts


def test_run_that_holds_clients_back_says_so():
    """More rounds of the same clients would break its privacy claim."""
    live = {"state": "selecting", "available": 2, "deadline_left_s": None, "held_back": 40}
    alert = _only(assess(_facts(_run(live=live), clients_online=50)))
    assert "2 of 5 may take part" in alert.what
    assert "holds back 40" in alert.what


def test_run_whose_clients_are_busy_is_reported():
    """More clients would not help."""
    waiting = _run(live={"state": "selecting", "available": 2, "deadline_left_s": None})
    alert = _only(assess(_facts(waiting, {**_run(), "id": "other"}, clients_online=6)))
    assert "2 of 5 are free; 4 others are online" in alert.what
    assert "Pause the run" in alert.todo


def test_a_run_whose_clients_cool_off_says_so():
    """More clients are one remedy, but what fails comes first."""
    waiting = _run(live={"state": "selecting", "available": 1, "deadline_left_s": None})
    waiting["live"]["clients_cooling"] = 4
    alert = _only(assess(_facts(waiting)))
    assert "1 of 5 are available. 4 cool off after failures." in alert.what
    assert alert.link == "/clients?state=cooling"


def test_running_without_any_client_is_the_worst_alert():
    """The advice depends on whether clients are enrolled."""
    health = assess(_facts(_run(), clients_online=0))
    assert "6 are enrolled" in health.alerts[0].what
    nobody = assess(_facts(_run(), clients_online=0, clients_enrolled=0))
    assert nobody.alerts[0].link == "/enrolment"


def test_devices_that_check_in_are_waited_for():
    """None is connected between two check-ins; a run may take two such times to begin."""
    assert not assess(_facts(_run(), clients_online=0, checking_in=1)).alerts
    waits = _run(live={"state": "selecting", "available": 1, "goal": 6, "deadline_left_s": None})
    facts = {"checking_in": 5, "check_in_every_s": 3600.0}
    assert not assess(_facts(waits | {"created_at": NOW - 7000.0}, **facts)).alerts
    late = _only(assess(_facts(waits | {"created_at": NOW - 7300.0}, **facts)))
    assert "waits for clients: 1 of 6" in late.what
    few = _facts(waits | {"created_at": NOW - 100.0}, **facts | {"checking_in": 4})
    assert "Start or enrol more clients" in _only(assess(few)).todo


def test_repeated_refusals_are_reported():
    """Late updates are normal; three poisoned ones are not."""
    late = RefusalCount(
        code="round_closed", times=50, clients=9, client="oak", last=NOW,
        message="Expected a finite loss, got nan.",
    )  # fmt: skip
    assert not assess(_facts(_run(), refused=(late,))).alerts
    poisoned = replace(late, code="not_finite", times=3, clients=1)
    assert not assess(_facts(_run(), refused=(replace(poisoned, times=2),))).alerts
    alert = _only(assess(_facts(_run(), refused=(poisoned,))))
    assert (alert.link, alert.client) == ("/clients/oak", "oak")
    assert alert.what.startswith("oak was refused 3 times")
    assert alert.what.endswith("Expected a finite loss, got nan.")
    many = _only(assess(_facts(_run(), refused=(replace(poisoned, clients=2),))))
    assert (many.link, many.client) == ("/clients", "")


def _failing(name, failures=5):
    return ClientRow(
        name=name, status="active", enrolled_at=0.0, revoked_at=None, seen_at=None, version=None,
        hold=None, hold_reason=None, held_at=None, note=None, failures=failures, failed_at=NOW,
        failed_why="ValueError: no examples.", failed_run="ward-1", failed_round=4,
    )  # fmt: skip


def test_a_few_failing_clients_are_reported_with_their_last_error():
    """Of many failing ones, three have an alert of their own."""
    alert = _only(assess(_facts(_run(), failing=(_failing("oak"),))))
    assert (alert.level, alert.client, alert.link) == (Level.WARN, "oak", "/clients/oak")
    words = "oak fails again and again, last in round 4 of ward-1: ValueError: no examples."
    assert alert.what == words
    five = tuple(_failing(f"c{i}") for i in range(5))
    alerts = assess(_facts(_run(), failing=five, clients_enrolled=12)).alerts
    assert [alert.client for alert in alerts] == ["c0", "c1", "c2", ""]
    assert alerts[3].what == "2 more clients fail again and again."
    assert alerts[3].link == "/clients?state=failing"


def test_most_clients_failing_is_no_matter_of_single_clients():
    """Half of them is."""
    four = tuple(_failing(f"c{i}") for i in range(4))
    assert not assess(_facts(_run(), failing=four, clients_enrolled=7)).alerts
    assert len(assess(_facts(_run(), failing=four, clients_enrolled=8)).alerts) == 4


def test_a_failing_client_has_one_alert():
    """The one about its refusals, which have the same error."""
    refused = RefusalCount(
        code="not_finite", times=5, clients=1, client="oak", last=NOW, message="Got nan."
    )
    alert = _only(assess(_facts(_run(), failing=(_failing("oak"),), refused=(refused,))))
    assert alert.what.startswith("oak was refused 5 times")


def test_expiring_authority_is_reported():
    """It is renewed automatically unless the root's key is kept offline."""
    assert not assess(_facts(_run(), authority_until=NOW + 40 * 86400)).alerts
    alert = _only(assess(_facts(_run(), authority_until=NOW + 20 * 86400)))
    assert (alert.level, "20 days" in alert.what) == (Level.WARN, True)
    assert _only(assess(_facts(_run(), authority_until=NOW + 86400))).level is Level.BAD


def test_worst_alert_comes_first():
    """Its level is the level of the server."""
    health = assess(_facts(_run(state="paused"), disk_free=0.01))
    assert [alert.level for alert in health.alerts] == [Level.BAD, Level.WARN]
    assert health.level is Level.BAD
    assert health.headline == "2 things need your attention"


def test_many_values_rounded_to_zero_are_an_alert_until_a_round_has_few():
    """By the latest round that measured it; the open one has not."""
    run = _run()
    opened, before = run["rounds"]
    for share, alerts in ((0.1, 1), (0.09, 0), (None, 0)):
        last = {**before, "underflow": share}
        health = assess(_facts({**run, "rounds": [{**opened, "underflow": None}, last]}))
        assert len(health.alerts) == alerts, share
    many = {**before, "underflow": 0.42}
    alert = _only(assess(_facts({**run, "rounds": [opened, many]})))
    assert "Round 3 of ward-1 rounded 42% of the values other than zero to zero." in alert.what
    assert alert.link == "/runs/ward-1/rounds/3"
