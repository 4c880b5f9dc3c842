"""Two replicas that are killed and stopped again and again, while devices train through haproxy.

    python tests/support/pair_crash.py --kills 100 --seed 1

Each server that starts is to die by SIGKILL at a named place, drawn by the seed; now and then the
one that drives is stopped by SIGSTOP for longer than the lease, and continued. A supervisor starts
what has ended. Checked after each run: the model has the bits of a server alone; each round counts
each device once; every acknowledgement that a device saw has its row; each server that began to
drive has the next epoch. Exit status 1 if anything is broken.
"""

import argparse
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedloom.protocol.tensors.container import write_file
from fedloom.server.ledger import Ledger
from fedloom.server.ledger.audit_trail import Filter
from fedloom.server.ledger.lists.order import Cut

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.object_store import CREDENTIALS, S3Server
from support.postgresql import PostgreSQL
from support.replicas import Pair
from support.site_servers import RUN_SEED, Cluster, wait_until

DEVICES = ["ward.one", "ward.two", "ward.three", "ward.four", "ward.five"]
PLACES = {
    # place: most crossings to wait for before dying there
    "round.opened": 2, "offer.sent": 8, "upload.chunk": 8, "upload.synced": 8, "accept.before": 8,
    "accept.after": 8, "fold.after": 8, "round.closing": 2, "commit.stored": 2, "commit.model": 2,
    "commit.ledger": 2, "store.part": 8, "store.model": 2,
}  # fmt: skip
STOPPED_S = (4.0, 8.0)
STOP_EVERY_S = 25.0
LIMIT_S = 1500.0


class PairCrash:
    """One run over a pair that dies again and again."""

    def __init__(self, folder, database, store, seed, rounds):
        self.folder, self.draw, self.rounds = folder, random.Random(seed), rounds
        self.pair = Pair(folder, database, store)
        self.database = database
        self.ended = Counter()  # how servers ended, by exit status
        self.cluster = Cluster(folder)
        self.stopped = {}  # replica → when to continue it
        self.next_stop = time.monotonic() + STOP_EVERY_S

    def play(self, model, target):
        """Submit the run, and break servers until it ends; the last model's digest."""
        driver = self.pair.driver
        configs = self.cluster.enrol(driver, DEVICES)
        self.cluster.run_devices(driver, configs)
        wait_until(lambda: driver.online() == len(DEVICES), "devices attend")
        self.run = driver.submit(spec(self.rounds), model)
        for each in (self.pair.second, self.pair.first):
            each.kill()
        ledger = Ledger(self.database)
        deadline = time.monotonic() + LIMIT_S
        try:
            while (row := ledger.run(self.run)).state != "finished":
                assert row.state == "running", row.reason
                assert time.monotonic() < deadline, self.pair.first.log()[-4000:]
                self.supervise(armed=self.ended.total() < target)
                time.sleep(0.1)
        finally:
            ledger.close()
        return row.model

    def supervise(self, *, armed):
        now = time.monotonic()
        for replica in (self.pair.first, self.pair.second):
            if replica.process.poll() is not None:
                self.stopped.pop(replica, None)
                self.ended[replica.process.returncode] += 1
                place = self.draw.choice(sorted(PLACES))
                count = self.draw.randint(1, PLACES[place])
                replica.launch(f"{place}:{count}" if armed else "")
            elif self.stopped.get(replica, now + 1.0) <= now:
                del self.stopped[replica]
                replica.process.send_signal(signal.SIGCONT)
        if armed and now > self.next_stop and not self.stopped:
            replica = next((r for r in (self.pair.first, self.pair.second) if r.drives), None)
            if replica is not None:
                replica.process.send_signal(signal.SIGSTOP)
                self.stopped[replica] = now + self.draw.uniform(*STOPPED_S)
                self.next_stop = now + STOP_EVERY_S

    def broken(self, got, expected):
        """What is wrong after the run."""
        ledger = Ledger(self.database)
        try:
            return [*self._broken(ledger, got, expected)]
        finally:
            ledger.close()

    def _broken(self, ledger, got, expected):
        if got != expected:
            yield f"the model is {got}, expected {expected}"
        numbers = {each.number for each in ledger.list_rounds(self.run)}
        states = {each.state for each in ledger.list_rounds(self.run)}
        if states != {"committed"}:
            yield f"rounds are {states}"
        rows = {(n, each.client) for n in numbers for each in ledger.accepted(self.run, n)}
        if rows != {(n, name) for n in numbers for name in DEVICES}:
            yield "a round lacks a device"
        log = (self.folder / "devices-of-first.log").read_text()
        seen = re.findall(r"(\S+): update of round (\d+) of \S+ accepted", log)
        self.acknowledged = {(int(number), client) for client, number in seen}
        if lost := self.acknowledged - rows:
            yield f"acknowledged, and lost: {sorted(lost)}"
        entries = [*ledger.trail.listed(Filter(action="driver"), Cut(limit=100_000))][::-1]
        epochs = [epoch_of(each) for each in entries if each["action"] == "driver.begin"]
        self.epochs = len(epochs)
        if any(after != before + 1 for before, after in pairwise(epochs)):
            yield f"epochs: {epochs}"

    def close(self):
        self.cluster.close()
        self.pair.close()


def epoch_of(entry):
    """The epoch in an entry of the audit trail."""
    return int(re.search(r'"epoch": ?(\d+)', entry["detail"])[1])


def spec(rounds):
    return {
        "name": "pair",
        "rounds": rounds,
        "seed": RUN_SEED,
        "strategy": {"name": "fedadam"},
        "cohort": {"goal": 5, "quorum": 5, "deadline_s": 900.0},
        "train": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1},
    }


def alone(folder, model, rounds):
    """Digest of the last model of a server alone."""
    cluster = Cluster(folder)
    try:
        server = cluster.server("alone").start()
        cluster.start_devices(server, DEVICES)
        return server.ended(server.submit(spec(rounds), model)).model
    finally:
        cluster.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    os.environ.update(CREDENTIALS)
    ended, faults, seed, acknowledged, epochs = Counter(), [], arguments.seed, 0, 0
    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary)
        rng, model = np.random.default_rng(3), top / "model.safetensors"
        arrays = {"w": rng.normal(0, 1, (50_000,)), "b": rng.normal(0, 1, (3, 5))}
        write_file(model, {name: array.astype(np.float32) for name, array in arrays.items()})
        (top / "alone").mkdir()
        expected = alone(top / "alone", model, arguments.rounds)
        s3, database = S3Server(top / "s3.log"), PostgreSQL()
        try:
            while ended.total() < arguments.kills and not faults:
                folder = top / str(seed)
                folder.mkdir()
                url, store = database.create(f"pair{seed}"), s3.url(f"pair{seed}")
                test = PairCrash(folder, url, store, seed, arguments.rounds)
                try:
                    got = test.play(model, arguments.kills - ended.total())
                    faults = test.broken(got, expected)
                finally:
                    test.close()
                ended += test.ended
                acknowledged += len(test.acknowledged)
                epochs += test.epochs
                print(f"seed {seed}: servers ended {dict(test.ended)}, {test.epochs} epochs")
                seed += 1
        finally:
            s3.close()
            database.close()
    print(
        f"servers ended: {ended[-signal.SIGKILL]} killed, {ended[5]} after they stood still; "
        f"{epochs} epochs; {acknowledged} acknowledgements"
    )
    print(f"broken: {'; '.join(faults) or 'nothing'}")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
