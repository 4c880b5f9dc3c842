"""Replicas whose state folders the manifest of `deploy/kubernetes` makes."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedloom.server.ledger import Ledger
from fedloom.server.replicas.gate import RENEW_S
from support.pods import prepared
from support.ports import steady_port
from support.replicas import Replica
from support.site_servers import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.usefixtures("credentials")]

MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes" / "replicas.yaml"


class Pod(Replica):
    """A replica whose state folder begins with the Secret alone; the root's key stays outside."""

    def prepare(self, key):
        secrets, volume = self.state.parent / f"{self.name}.secrets", self.state.parent / "volume"
        shutil.copytree(self.state / "pki", secrets)
        shutil.copy(self.state / "server.toml", secrets)
        (secrets / "master.key").write_text(key)
        shutil.rmtree(self.state)
        shutil.move(prepared(MANIFEST, volume, secrets), self.state)

    def health(self):
        """The exit status of what the image's HEALTHCHECK asks."""
        command = [sys.executable, "-m", "fedloom.cli.main", "server", "health"]
        where = {**os.environ, "FEDLOOM_DIR": str(self.state)}
        return subprocess.run(command, env=where, check=False).returncode


def test_a_gate_waits_until_the_first_driver_has_begun(tmp_path, database, s3):
    """It neither claims the store nor makes a signing key, which are the driver's to make."""
    url, store = database.create(tmp_path.name), s3.url(tmp_path.name)
    pod = Pod(tmp_path, "pod", steady_port(), database=url, store=store, gates=True)
    ledger = Ledger(url)
    rows = ledger.lease_rows()
    pod.prepare("5e" * 32)
    lease, _ = rows.take("another", "another", gates=True)
    pod.launch("")
    try:
        wait_until(lambda: rows.renew(lease) and "on standby" in pod.log(), "it waits")
        waited = time.monotonic() + 4 * RENEW_S
        while time.monotonic() < waited:
            assert rows.renew(lease)
            time.sleep(RENEW_S / 4)
        assert (ledger.store_claim(), ledger.wrapped_keys()) == (None, {})
        rows.release(lease)
        wait_until(lambda: pod.drives, "it drives")
        assert ledger.store_claim()
        assert [name for name in ledger.wrapped_keys() if name.startswith("signing/")]
    finally:
        pod.stop()
        rows.close()
        ledger.close()


def test_pods_that_begin_together_drive_and_serve(tmp_path, database, s3):
    """From one Secret, in any order; a gate is as healthy as the one that drives."""
    port, url, store = steady_port(), database.create(tmp_path.name), s3.url(tmp_path.name)
    made = [Pod(tmp_path, f"pod{n}", port, database=url, store=store, gates=True) for n in (0, 1)]
    first, second = made
    shutil.rmtree(second.state / "pki")
    shutil.copytree(first.state / "pki", second.state / "pki")
    for each in made:
        each.prepare("5e" * 32)
        each.launch("")
    try:
        wait_until(lambda: all(each.serves() for each in made), "both serve devices")
        assert sum(each.drives for each in made) == 1
        assert [each.health() for each in made] == [0, 0]
    finally:
        for each in made:
            each.stop()
