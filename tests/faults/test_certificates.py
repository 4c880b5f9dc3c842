"""Certificates that expired while the device was off, and wrong clocks."""

import shutil
import signal
from datetime import UTC, datetime, timedelta

import pytest

from fedloom.protocol.errors import Code
from fedloom.server.ledger import Ledger
from support.patience import PATIENCE_S
from support.stage import Stage, model, wait

pytestmark = pytest.mark.e2e

DAY_S = 86_400.0
NAMES = ("ann", "bob")


def _round(stage, seed):
    """A run of two rounds with both devices in each."""
    initial = model(1000, seed)
    run = stage.submit(initial)
    stage.finished(run)
    assert stage.judge(run, initial) == [sorted(NAMES)] * 2


@pytest.fixture
def stage(tmp_path):
    """A server and bob, who is always connected."""
    with Stage(tmp_path, ("bob",)) as stage:
        stage.start("bob")
        yield stage


def _enrol(stage, *, life_s, age_s):
    """Enrol ann with a certificate of this age."""
    stage.enrol(["ann"], life_s, datetime.now(UTC) - timedelta(seconds=age_s))
    stage.point("ann", stage.config.fleet, enrolment=stage.config.enrolment)


@pytest.mark.parametrize(
    ("life_s", "age_s", "said"),
    [
        pytest.param(DAY_S, 0.7 * DAY_S, "certificate renewed", id="past two thirds"),
        pytest.param(DAY_S, DAY_S - 60.0, "certificate renewed", id="near its end"),
        pytest.param(DAY_S, DAY_S + 60.0, "after it had expired", id="past its end"),
        pytest.param(DAY_S, 7.9 * DAY_S, "after it had expired", id="a week past its end"),
    ],
)
def test_a_certificate_is_renewed_late(stage, life_s, age_s, said):
    """Past two thirds of its life, near its expiry and after it: the device takes part."""
    _enrol(stage, life_s=life_s, age_s=age_s)
    ann = stage.start("ann")
    stage.online(2)
    wait(lambda: said in ann.log(), "the renewal")
    _round(stage, 1)


def test_a_certificate_past_the_grace_period_needs_a_token(stage):
    """The agent ends and names the remedy; the ledger has the refusal."""
    _enrol(stage, life_s=DAY_S, age_s=8.1 * DAY_S)
    ann = stage.start("ann")
    assert ann.process.wait(PATIENCE_S) == 1
    assert "Late renewal is possible for 168 hours: enrol again with a new token" in ann.log()
    ledger = Ledger.in_directory(stage.state)
    wait(lambda: ledger.list_refusals(""), "the refusal, which is stored within a second")
    newest = ledger.list_refusals("")[0]
    ledger.close()
    assert (newest.code, newest.client) == (Code.EXPIRED, "ann")


def test_an_agent_killed_before_it_stored_its_certificate_renews_again(stage):
    """Killed at each of two places; then it connects."""
    _enrol(stage, life_s=DAY_S, age_s=DAY_S + 60.0)
    for place in ("client.renew.issued", "client.identity.root"):
        stage.start("ann", FEDLOOM_KILL=place)
        stage.died("ann")
    stage.start("ann")
    stage.online(2)
    _round(stage, 2)


def test_the_enrolment_port_may_open_later(stage):
    """The device retries until the server runs."""
    _enrol(stage, life_s=DAY_S, age_s=DAY_S + 60.0)
    stage.stop_server(signal.SIGKILL)
    ann = stage.start("ann")
    wait(lambda: "not connected" in ann.log(), "a failure")
    stage.start_server()
    stage.online(2)
    _round(stage, 3)


needs_faketime = pytest.mark.skipif(
    shutil.which("faketime") is None, reason="another clock for a process needs faketime"
)


@needs_faketime
@pytest.mark.parametrize("offset", ["-1h", "+1h", "-23h"])
@pytest.mark.parametrize("life_s", [1800.0, 7 * DAY_S], ids=["half an hour", "a week"])
def test_a_wrong_clock_changes_nothing(stage, offset, life_s):
    """Hours late or early, with certificates shorter and longer than that."""
    _enrol(stage, life_s=life_s, age_s=0.0)
    ann = stage.start("ann", before=["faketime", "-f", offset])
    stage.online(2)
    wait(lambda: "clock is" in ann.log(), "a word about the clock")
    _round(stage, 4)
    stage.end("ann")
    stage.start("ann", before=["faketime", "-f", offset])
    stage.online(2)
    _round(stage, 5)


@needs_faketime
def test_a_device_without_a_clock_connects_after_its_clock_is_set(stage, tmp_path):
    """In 1970 it does not trust the server's certificate, and retries."""
    _enrol(stage, life_s=DAY_S, age_s=0.0)
    clock = tmp_path / "clock"
    clock.write_text("@1970-01-02 00:00:00\n")
    ann = stage.start(
        "ann",
        before=["faketime", "-f", "+0", "env", "-u", "FAKETIME"],
        FAKETIME_TIMESTAMP_FILE=str(clock),
        FAKETIME_NO_CACHE="1",
        DONT_FAKE_MONOTONIC="1",
    )
    wait(lambda: "not connected" in ann.log(), "a failure")
    clock.write_text("+0\n")
    stage.online(2)
    _round(stage, 6)
