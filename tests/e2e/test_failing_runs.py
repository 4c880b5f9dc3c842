"""A run whose clients all fail says within 10 s that it cannot continue, why, and what to do.

A real server and real agents in processes; the views are those of operators.
"""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from fedloom.server.ledger import Ledger
from support.door import _Connection
from support.stage import HERE, Stage, model, wait

pytestmark = pytest.mark.e2e

NAMES = ("ann", "bob", "cid")
COHORT = {"goal": 2, "quorum": 2, "deadline_s": 600.0, "patience_s": 30.0}
FAILURES = {
    # how training fails: what the run says, what to do
    "raise": ("2 clients failed: ValueError: no column 'age'", "fedloom client test"),
    "memory": ("2 clients failed: MemoryError", "train.batch_size"),
    "shape": ("Expected shape (10,) for 'bias' from train, got (3, 1)", "model do not fit"),
    "dtype": ("Expected real numbers for 'bias' from train, got an array of complex64", "not fit"),
    "nan": ("2 clients were refused: not_finite: Expected finite values in 'bias'", "diverges"),
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """A server and two devices that are not started."""
    with Stage(tmp_path_factory.mktemp("failing"), NAMES) as stage:
        yield stage


def start(stage, **fails):
    """Start devices, each with its way to fail."""
    for name, how in fails.items():
        stage.start(name, script=HERE / "failing_client.py", FAIL=how)
    stage.online(len(fails))


def end(stage, run):
    for name in NAMES:
        stage.end(name)
    if stage.row(run)["state"] in ("running", "paused"):
        stage.control().post("runs", run, "stop")
    stage.online(0)


def command(stage, *words):
    """What a command prints, on one line."""
    told = subprocess.run(
        [sys.executable, "-m", "fedloom.cli.main", *words, "--dir", str(stage.state)],
        capture_output=True, text=True, check=False,
        env={**os.environ, "COLUMNS": "110", "LINES": "40", "NO_COLOR": "1"},
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    return flat(told.stdout)


def page(stage, path):
    connection = _Connection(stage.state / "control.sock")
    connection.request("GET", path)
    answer = connection.getresponse()
    assert answer.status == 200
    text = answer.read().decode()
    connection.close()
    return flat(re.sub("<[^>]+>", " ", text).replace("&#39;", "'"))


def flat(text):
    return re.sub(r"\s+", " ", text)


def last_failure(stage, run):
    """When the last member of round 1 failed, and when the round ended; seconds."""
    ledger = Ledger.in_directory(stage.state)
    try:
        members = ledger.members(run, 1)
        [round_] = ledger.list_rounds(run)
    finally:
        ledger.close()
    assert {m.phase for m in members} <= {"failed", "refused"}
    return max(m.ended_at for m in members), round_.closed_at


@pytest.mark.long
@pytest.mark.parametrize("how", FAILURES)
def test_every_view_says_why_a_run_cannot_continue(stage, how):
    """Status, top, overview, API, pages and an alert; no other round is tried."""
    what, todo = FAILURES[how]
    start(stage, ann=how, bob=how)
    run = stage.submit(model(1000), cohort=COHORT)
    wait(lambda: stage.row(run)["state"] == "paused", "the run to pause", 30)
    found = stage.row(run)
    overview = stage.control().get("overview")
    failed_at, closed_at = last_failure(stage, run)
    assert closed_at - failed_at < 10
    assert time.time() - failed_at < 10

    assert found["reason"].startswith("quorum out of reach: 0 of 2 updates are possible; ")
    assert what in found["reason"]
    assert (found["failing"]["stuck"], todo in found["failing"]["todo"]) == (True, True)
    assert f"fedloom run resume {run}" in found["failing"]["todo"]
    assert found["time_left_s"] is None
    [round_] = found["rounds"]
    [kind] = round_["clients"]["failures"]
    assert (kind["count"], kind["client"]) == (2, "ann")
    assert kind["message"].rstrip(": .") in found["reason"]

    [alert] = [a for a in overview["alerts"] if a["run"] == run]
    assert (alert["level"], overview["level"]) == ("bad", "bad")
    assert f"{run} cannot continue" in alert["what"]
    assert what in alert["what"]
    assert todo in alert["todo"]

    for text in (
        command(stage, "run", "status", run),
        command(stage, "top", "--once"),
        page(stage, "/"),
        page(stage, f"/runs/{run}"),
    ):
        assert "Everything is well" not in text
        assert "cannot continue" in text
        assert flat(what) in text
        assert todo in text
    for text in (command(stage, "round", "show", run, "1"), page(stage, f"/runs/{run}/rounds/1")):
        assert flat(kind["message"]).rstrip(": .") in text
        assert "2 failed" in text or "2 refused" in text
    end(stage, run)


@pytest.mark.long
def test_a_run_that_was_mended_continues(stage):
    """Other code on the devices, and `resume`: the alert is gone."""
    start(stage, ann="shape", bob="shape")
    run = stage.submit(model(1000), cohort=COHORT)
    wait(lambda: stage.row(run)["state"] == "paused", "the run to pause", 30)
    for name in NAMES:
        stage.end(name)
    stage.online(0)
    start(stage, ann="", bob="")
    stage.control().post("runs", run, "resume")
    stage.finished(run)
    found = stage.row(run)
    assert [r["state"] for r in found["rounds"]] == ["abandoned", "committed", "committed"]
    assert found["failing"] is None
    end(stage, run)


@pytest.mark.long
def test_one_failing_client_does_not_stop_the_others(stage):
    """With a quorum that the others reach, the rounds commit; the failure is shown."""
    start(stage, ann="raise", bob="")
    run = stage.submit(model(1000), cohort={**COHORT, "quorum": 1})
    stage.finished(run)
    found = stage.row(run)
    assert [r["state"] for r in found["rounds"]] == ["committed", "committed"]
    for round_ in found["rounds"]:
        assert [f["count"] for f in round_["clients"]["failures"]] == [1]
    assert "1 failed: ValueError" in command(stage, "round", "show", run, "1")
    end(stage, run)


@pytest.mark.long
def test_different_failures_are_tried_again(stage):
    """Three rounds end early; the run pauses with the last one's words."""
    start(stage, ann="raise", bob="memory")
    run = stage.submit(model(1000), cohort=COHORT)
    wait(lambda: stage.row(run)["state"] == "paused", "the run to pause", 60)
    found = stage.row(run)
    assert len(found["rounds"]) == 3
    assert found["reason"].startswith("3 rounds in a row were abandoned; the last one: quorum out")
    assert all(r["closed_at"] - r["opened_at"] < 30 for r in found["rounds"])
    assert found["failing"]["stuck"]
    end(stage, run)


@pytest.mark.longest
def test_a_round_waits_for_a_client_of_another_run(stage):
    """A client is busy for longer than three graces; then it replaces the one that fails."""
    stage.start("cid", script=HERE / "failing_client.py", FAIL="slow", SLOW_S="16")
    stage.online(1)
    other = stage.submit(model(1000), rounds=1, cohort={"goal": 1, "deadline_s": 600.0})
    wait(lambda: stage.row(other)["rounds"], "the other run's round", 30)
    for name, how in (("ann", "raise"), ("bob", "")):
        stage.start(name, script=HERE / "failing_client.py", FAIL=how)
    stage.online(3)
    run = stage.submit(model(1000), rounds=1, cohort=COHORT)
    wait(lambda: stage.row(other)["state"] == "finished", "the other run", 60)
    wait(lambda: stage.row(run)["state"] != "running", "the run", 60)
    found = stage.row(run)
    assert (found["state"], [r["state"] for r in found["rounds"]]) == ("finished", ["committed"])
    end(stage, run)


@pytest.mark.longest
@pytest.mark.long
def test_a_server_that_is_killed_in_the_grace_decides_the_same(stage):
    """SIGKILL after both failures, before the round ends: words and counts are those of before."""
    start(stage, ann="raise", bob="raise")
    run = stage.submit(model(1000), cohort={**COHORT, "give_up_s": 20.0, "patience_s": 20.0})

    def doomed():
        live = (stage.row(run)["live"] or {}).get("round") or {}
        return live.get("gives_up_in_s") is not None and live["clients"]["failed"] == 2

    wait(doomed, "the grace to begin", 30)
    before = stage.row(run)
    text = command(stage, "run", "status", run)
    assert "quorum out of reach, ends in" in text
    assert f"Round 1 of {run} cannot reach its quorum of 2" in text
    ledger = Ledger.in_directory(stage.state)
    wait(lambda: {m.phase for m in ledger.cohort(run, 1)} == {"failed"}, "the ledger")
    ledger.close()
    stage.stop_server(signal.SIGKILL)
    stage.start_server()
    wait(doomed, "the devices to return, and the grace to begin again", 60)
    again = stage.row(run)
    assert again["live"]["round"]["failures"] == before["live"]["round"]["failures"]
    wait(lambda: stage.row(run)["state"] == "paused", "the run to pause", 60)
    found = stage.row(run)
    assert "2 clients failed: ValueError: no column 'age'" in found["reason"]
    assert len(found["rounds"]) == 1
    end(stage, run)
