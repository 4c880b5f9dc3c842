"""Two servers whose clocks are ten minutes apart: deadlines are by the database's clock."""

import shutil
from pathlib import Path

import pytest

from fedloom.server.ledger.tables import rounds, updates
from support.proxy import hello
from support.replicas import DEVICES, Replicas, has_rounds, rows, spec
from support.site_servers import Cluster, wait_until

OFFSETS_S = (300, -300)
LIBRARY = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.usefixtures("credentials"),
    pytest.mark.skipif(
        shutil.which("faketime") is None or not LIBRARY.exists(),
        reason="another clock for a process needs faketime",
    ),
]

DEADLINE_S, PATIENCE_S = 40.0, 15.0
PATIENT = {"fedloom.server.ledger.replicas.lease_rows.WAIT_MS": 30_000}
"""Pauses within a transaction that end it are not looked at here: on a busy machine, a process with
another clock may take two seconds."""

SLOW_S = 100.0
"""Time that a busy machine may lose; an error would be of five minutes or ten."""


def test_deadlines_are_right_though_clocks_are_apart(tmp_path, database, s3, small_model):
    """A round is opened by a server whose clock is fast, and closed by one whose clock is slow."""
    url, store = database.create(tmp_path.name), s3.url(tmp_path.name)
    clocks = [
        # Not the monotonic clock, by which threads wait.
        {
            "LD_PRELOAD": f"{LIBRARY}",
            "FAKETIME": f"{offset_s:+}s",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        for offset_s in OFFSETS_S
    ]
    pair = Replicas(tmp_path, url, store, environments=clocks, constants=PATIENT)
    cluster = Cluster(tmp_path)
    try:
        first, second = pair.all
        for host in first.settings.public.hosts:
            wait_until(lambda host=host: not pair.door.refuses(sent=hello(host)), f"{host} is up")
        cluster.run_devices(first, cluster.enrol(first, DEVICES[1:]))
        cluster.run_devices(first, cluster.enrol(first, DEVICES[:1]), stuck=1)
        wait_until(lambda: first.online() == len(DEVICES), "devices attend")
        cohort = {"goal": len(DEVICES), "quorum": len(DEVICES) - 1, "deadline_s": DEADLINE_S}
        cohort["patience_s"] = PATIENCE_S  # so long a round stays open after a take-over
        run = first.submit(spec(cohort=cohort, rounds=1, evaluate=False), small_model)
        wait_until(lambda: has_rounds(first, run, 1), "a round is open")
        first.kill()
        assert pair.driver is second
        second.ended(run)
        assert {row["client"] for row in rows(second, updates)} == {*DEVICES[1:]}
        [round_] = rows(second, rounds)
        took_s = round_["closed_at"] - round_["opened_at"]
        late_s = round_["closed_at"] - round_["deadline_at"]
        print(f"open for {took_s:.1f} s, closed {late_s:.1f} s after its deadline")
        assert DEADLINE_S - 2 < took_s < DEADLINE_S + SLOW_S
        [[now]] = database.execute("SELECT extract(epoch FROM clock_timestamp())::float")
        assert abs(now - round_["closed_at"]) < SLOW_S
    finally:
        cluster.close()
        pair.close()
