"""Three replicas that are upgraded one after another, within a run.

    python tests/support/rolling_upgrade.py OLD

begins with the sources of the commit OLD, under another version's number, and ends with these.
"""

import os
import shutil
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from commits import ROOTS, checked_out
from fedloom.protocol.version import __version__
from fedloom.server.ledger.tables import rounds
from support.object_store import CREDENTIALS, S3Server
from support.postgresql import PostgreSQL
from support.replicas import DEVICES, Replicas, alone, has_rounds, rows, spec
from support.site_servers import Cluster, wait_until, write_model

WAITS = "serves no devices while"


def committed(replica, run):
    return [each for each in replica.rounds(run) if each.state == "committed"]


class RollingUpgrade:
    """A rolling upgrade; ended by `close`.

    Args:
        folder: for states, logs and settings.
        database: URL.
        store: URL.
        before: sources at first, as of `ServerProcess`.

    Attributes:
        replicas: the servers.
        counted: the rounds that were closed in the run, in order.
        pauses_s: between the offers of a round and of the next one, sorted.
    """

    def __init__(self, folder, database, store, before=""):
        self.replicas = Replicas(folder, database, store, 3, gates=True, sources=before)
        self._cluster = Cluster(folder)

    def play(self, model, after, upgraded=lambda: None):
        """Upgrade all in a run.

        Args:
            model: to begin with.
            after: sources of the new version.
            upgraded: called when all but the driver have been started with it.
        """
        first, *gates = self.replicas.all
        self._cluster.run_devices(first, self._cluster.enrol(first, DEVICES), pause_s=0.3)
        wait_until(lambda: first.online() == len(DEVICES), "devices attend")
        run = first.submit(spec(rounds=1000), model)
        wait_until(lambda: has_rounds(first, run, 2), "a round is open")
        for each in gates:
            self._restart(each, after)
            wait_until(lambda each=each: WAITS in each.log(), WAITS)
        upgraded()
        assert first.drives
        self._restart(first, after)
        driver = self.replicas.driver
        assert driver in gates
        wait_until(lambda: all(each.serves() for each in self.replicas.all), "all serve")
        done = len(committed(driver, run))
        wait_until(lambda: len(committed(driver, run)) > done + 1, "the run goes on")
        driver.control.post("runs", run, "stop")
        self.counted = [each for each in driver.rounds(run) if each.cause != "stopped"]
        assert {each.state for each in self.counted} == {"committed"}
        assert {each.accepted for each in self.counted} == {len(DEVICES)}
        at = sorted(row["opened_at"] for row in rows(driver, rounds))
        self.pauses_s = sorted(after - before for before, after in pairwise(at))

    def _restart(self, replica, sources):
        replica.stop()
        assert replica.process.returncode == 0, replica.log()
        replica.sources = sources
        replica.launch("")

    def told(self):
        """The pauses between rounds, as text."""
        found = self.pauses_s
        median, p99 = (found[int(len(found) * share)] for share in (0.5, 0.99))
        return (
            f"{len(self.counted)} rounds; seconds between two: median {median:.2f}, p99 {p99:.2f}, "
            f"most {found[-1]:.2f}"
        )

    def close(self):
        self._cluster.close()
        self.replicas.close()


def numbered(checkout, folder):
    """The sources of a checkout with another version's number, as PYTHONPATH."""
    for root in ROOTS:
        shutil.copytree(checkout / root, folder / root)
    path = folder / "client_sdk/fedloom/protocol/version.py"
    path.write_text(path.read_text().replace(f'"{__version__}"', '"0.0.1"'))
    return os.pathsep.join(str(folder / root) for root in ROOTS)


def main(old):
    os.environ |= CREDENTIALS
    database = PostgreSQL()
    with tempfile.TemporaryDirectory(prefix="fedloom-rolling-") as name:
        folder = Path(name)
        s3 = S3Server(folder / "s3.log")
        try:
            return try_upgrade(folder, database, s3, old)
        finally:
            s3.close()
            database.close()


def try_upgrade(folder, database, s3, old):
    """Upgrade from a commit, and compare the bits; the exit status."""
    model = folder / "model.safetensors"
    write_model(model, 50_000)
    with checked_out(old, folder / "old") as checkout:
        before = numbered(checkout, folder / "numbered")
    rolling = RollingUpgrade(folder, database.create("rolling"), s3.url("rolling"), before)
    try:
        rolling.play(model, "")
    finally:
        rolling.close()
    print(rolling.told())
    apart, last = folder / "apart", rolling.counted[-1]
    apart.mkdir()
    same = alone(apart, model, spec(rounds=last.number)) == last.model_out
    print("the bits are those of one server" if same else "OTHER BITS than of one server")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
