"""How long devices get no offer while servers are stopped, killed or restarted.

    python tests/support/offer_gaps.py [--stops N] [--kills N] [--rolls N]

Three replicas with gates behind haproxy, and devices whose rounds are short. A gap is the time
between two trainings that begin one after another, at any devices: the longest one around each
event is shown, by the devices' clock. For the driver that is gone also what the next one did when.
"""

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from support import site_servers
from support.object_store import CREDENTIALS, S3Server
from support.postgresql import PostgreSQL
from support.replicas import DEVICES, Replicas, spec
from support.site_servers import Cluster, wait_until, write_model

STEPS = {
    "lease": "driving in epoch", "rounds": "round_driver round", "port": "fleet on port",
}  # fmt: skip


class OfferGaps:
    """Replicas in a run; ended by `close`.

    Args:
        folder: for states, logs and settings.
        database: URL.
        store: URL.
        train_s: seconds for which a device trains.
        sources: as of `ServerProcess`.
    """

    def __init__(self, folder, database, store, train_s, sources=""):
        self.replicas = Replicas(folder, database, store, 3, gates=True, sources=sources)
        self._cluster, self._folder = Cluster(folder), folder
        first = self.replicas.first
        model = folder / "model.safetensors"
        write_model(model, 50_000)
        self._cluster.run_devices(first, self._cluster.enrol(first, DEVICES), pause_s=train_s)
        wait_until(lambda: first.online() == len(DEVICES), "devices attend")
        self._run = first.submit(spec(rounds=100_000, evaluate=False), model)
        self.settle()

    def trainings(self):
        """When each training began, in order; seconds since the epoch, and the round."""
        log = (self._folder / "devices-of-replica0.log").read_text()
        found = re.findall(r"^([\d.]+) .* trains in round (\d+)$", log, re.MULTILINE)
        return sorted((float(at), int(number)) for at, number in found)

    def settle(self, rounds=4):
        """Wait until all replicas serve, and some more rounds have begun."""
        wait_until(lambda: all(each.serves() for each in self.replicas.all), "all serve")
        after = self.trainings()[-1][1] if self.trainings() else 0
        wait_until(lambda: self._last() >= after + rounds, "the run goes on")

    def _last(self):
        found = self.trainings()
        return found[-1][1] if found else 0

    def usual(self):
        """Median seconds between the first training of a round and that of the next."""
        firsts = {}
        for at, number in self.trainings():
            firsts.setdefault(number, at)
        return statistics.median(after - before for before, after in pairwise(firsts.values()))

    def lose_driver(self, *, kill):
        """End the driver and start it again; what happened when, in seconds since then."""
        driver = self.replicas.driver
        time.sleep(0.37)
        lengths = {each: len(each.log()) for each in self.replicas.all}
        at, before = time.time(), self._last()
        driver.kill() if kill else driver.process.terminate()
        wait_until(lambda: self._last() > before + 1, "the run goes on")
        driver.process.wait()
        gone = time.time()
        seen = {"gap": self._gap(at)}
        if not kill:
            seen["gone"] = gone - at
        for each, length in lengths.items():
            new = each.log()[length:]
            for name, text in STEPS.items():
                if each is not driver and (found := _first(new, text)):
                    seen[name] = found - at
        driver.launch("")
        return seen

    def roll(self):
        """Restart all, the driver last; the gaps between rounds meanwhile."""
        at, last = time.time(), self.replicas.driver
        for each in [*(r for r in self.replicas.all if r is not last), last]:
            each.stop()
            each.launch("")
            wait_until(each.serves, "it serves")
        self.settle(3)
        firsts = {}
        for began, number in self.trainings():
            firsts.setdefault(number, began)
        return sorted(after - before for before, after in pairwise(firsts.values()) if after >= at)

    def _gap(self, at):
        """The longest gap that ended after a time, within its first rounds."""
        found = [began for began, _ in self.trainings()]
        return max(after - before for before, after in pairwise(found) if after >= at)

    def close(self):
        self._cluster.close()
        self.replicas.close()


def _first(log, text):
    for line in log.splitlines():
        if re.search(text, line):
            return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()
    return None


def told(found):
    """Numbers as text."""
    found = sorted(found)
    p99 = found[min(len(found) - 1, int(len(found) * 0.99))]
    return (
        f"{len(found)}: least {found[0]:.2f}, median {statistics.median(found):.2f}, "
        f"p99 {p99:.2f}, most {found[-1]:.2f} s"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stops", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--rolls", type=int, default=0)
    parser.add_argument("--train", type=float, default=0.1, help="seconds")
    parser.add_argument("--sources", default="", help="PYTHONPATH of other servers")
    parser.add_argument("--keep", help="folder that stays")
    arguments = parser.parse_args()
    os.environ |= CREDENTIALS
    site_servers.PATIENCE_S = 600.0  # also on a busy machine
    database = PostgreSQL()
    with tempfile.TemporaryDirectory(prefix="fedloom-gaps-") as name:
        folder = Path(arguments.keep or name)
        folder.mkdir(exist_ok=True)
        s3 = S3Server(folder / "s3.log")
        gaps = None
        try:
            gaps = OfferGaps(
                folder, database.create("gaps"), s3.url("gaps"), arguments.train, arguments.sources
            )
            print(f"between rounds: median {gaps.usual():.2f} s")
            measure(gaps, arguments)
        finally:
            if gaps is not None:
                gaps.close()
            s3.close()
            database.close()


def measure(gaps, arguments):
    for what, kill, times in (("stops", False, arguments.stops), ("kills", True, arguments.kills)):
        found = []
        for _ in range(times):
            seen = gaps.lose_driver(kill=kill)
            found.append(seen["gap"])
            steps = ", ".join(f"{name} {at:.2f}" for name, at in seen.items())
            print(f"{what}: {steps}; load {os.getloadavg()[0]:.1f}", flush=True)
            gaps.settle()
        if found:
            print(f"{what}, gaps: {told(found)}")
    found = []
    for _ in range(arguments.rolls):
        between = gaps.roll()
        found += between
        print(f"restart of all, between rounds: {told(between)}; load {os.getloadavg()[0]:.1f}")
    if found:
        print(f"restarts of all, between rounds: {told(found)}")


if __name__ == "__main__":
    main()
