"""A full disk of a device or the server costs at most the update of a round."""

import os
import subprocess
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import pytest

from support.stage import Stage, model, wait

MAY_MOUNT = (
    os.geteuid() == 0
    and subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True,
        check=False,
    ).returncode
    == 0
)
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not MAY_MOUNT, reason="a small file system needs root and mounts"),
]

NAMES = ("ann", "bob")
COHORT = {"goal": 2, "quorum": 1, "deadline_s": 3600.0, "patience_s": 3600.0}
MODEL_BYTES = 1 << 20


@contextmanager
def small_disk(path, size_mb):
    """Mount a file system of a few megabytes on a folder."""
    path.mkdir(exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={size_mb}m,mode=700", "none", str(path)]
    subprocess.run(["mount", *options], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(folder, leave_bytes=0):
    """Fill a disk except for some bytes."""
    path = folder / "filler"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    with suppress(OSError):
        while True:
            os.write(handle, bytes(4096))
    os.close(handle)
    if leave_bytes:
        os.truncate(path, max(0, path.stat().st_size - leave_bytes))
    return path


@pytest.fixture
def stage(tmp_path):
    """A server, bob with space, and ann whose state is on a small disk."""
    folder = tmp_path / "stage" / "ann" / "client-state"
    folder.mkdir(parents=True)
    with small_disk(folder, 12), Stage(tmp_path / "stage", NAMES) as stage:
        for name in NAMES:
            stage.start(name)
        stage.online(2)
        yield stage


@pytest.mark.parametrize(
    "leave_bytes",
    [0, MODEL_BYTES // 2, MODEL_BYTES + 64 * 1024],
    ids=["nothing fits", "half a model fits", "the model fits, the update does not"],
)
def test_a_device_with_a_full_disk_fails_its_round_and_does_the_next(stage, leave_bytes):
    """It reports the reason and stays connected; with free space it takes part again."""
    filler = fill(stage.devices["ann"].state, leave_bytes)
    initial = model(MODEL_BYTES, seed=1)
    run = stage.submit(initial, rounds=1, cohort=COHORT)
    stage.finished(run)
    assert stage.judge(run, initial, rounds=1, cohort=COHORT) == [["bob"]]
    said = stage.devices["ann"].log()  # offers that cannot fit are declined before a download
    assert "No space left" in said or "free on the disk" in said
    assert stage.devices["ann"].process.poll() is None
    stage.online(2)
    filler.unlink()
    second = model(MODEL_BYTES, seed=2)
    run = stage.submit(second)
    stage.finished(run)
    assert stage.judge(run, second) == [sorted(NAMES)] * 2


def test_a_device_starts_and_connects_with_a_full_disk(stage):
    """Killed, restarted on a full disk, and recovered with free space."""
    stage.end("ann")
    filler = fill(stage.devices["ann"].state)
    stage.start("ann")
    stage.online(2)
    initial = model(MODEL_BYTES, seed=3)
    run = stage.submit(initial, rounds=1, cohort=COHORT)
    stage.finished(run)
    filler.unlink()
    second = model(MODEL_BYTES, seed=4)
    run = stage.submit(second)
    stage.finished(run)
    assert stage.judge(run, second) == [sorted(NAMES)] * 2


def test_a_full_disk_drops_outdated_partial_downloads(stage):
    """They make space for the next model."""
    ann = stage.devices["ann"]
    filler = fill(ann.state, MODEL_BYTES // 2)
    for seed in (5, 6, 7):
        run = stage.submit(model(MODEL_BYTES, seed), rounds=1, cohort=COHORT)
        stage.finished(run)
    parts = list((ann.state / "models").glob("*.part"))
    assert len(parts) <= 1, parts
    filler.unlink()


def test_a_certificate_is_renewed_when_the_disk_has_space_again(tmp_path):
    """While the disk is full, no certificate is requested."""
    folder = tmp_path / "stage" / "ann" / "client-state"
    folder.mkdir(parents=True)
    with small_disk(folder, 2), Stage(tmp_path / "stage", ("bob",)) as stage:
        stage.start("bob")
        stage.online(1)
        stage.enrol(["ann"], 60.0, datetime.now(UTC))  # due in 40 s: the agent has started by then
        ann = stage.start("ann")
        stage.online(2)
        filler = fill(ann.state)
        wait(lambda: "Expected room for a certificate" in ann.log(), "the renewal to be due")
        filler.unlink()
        wait(lambda: "certificate renewed" in ann.log(), "the renewal")
        said = (stage.directory / "server.log").read_text()
        assert said.count("ann renewed its certificate") == ann.log().count("certificate renewed")
        initial = model(1000, seed=8)
        run = stage.submit(initial)
        stage.finished(run)
        assert stage.judge(run, initial) == [sorted(NAMES)] * 2


def test_a_server_with_a_full_disk_waits_and_loses_nothing(tmp_path):
    """Its disk fills during a run: devices keep their updates, and all count later."""
    folder = tmp_path / "stage" / "server"
    folder.mkdir(parents=True)
    with small_disk(folder, 24), Stage(tmp_path / "stage", NAMES) as stage:
        for name in NAMES:
            stage.start(name)
        stage.online(2)
        initial = model(MODEL_BYTES, seed=9)
        config = {"pause_s": 1.5}
        run = stage.submit(initial, rounds=3, config=config)
        wait(lambda: stage.phase(run, "ann") == "training", "the round")
        filler = fill(stage.state)
        log = stage.directory / "server.log"
        wait(lambda: "out_of_space" in log.read_text() or "storage" in log.read_text(), "trouble")
        filler.unlink()
        stage.finished(run, 120.0)
        assert stage.judge(run, initial, rounds=3, config=config) == [sorted(NAMES)] * 3
