"""Replicas that are killed and stopped again and again, while devices train through haproxy.

    python tests/support/replicas_crash.py --kills 100 --seed 1 [--gates]

There are two, or three with gates. Each server that starts is to die by SIGKILL at a named place,
drawn by the seed; now and then one is stopped by SIGSTOP for longer than its lease, and continued:
the one that drives, or with gates any. A supervisor starts what has ended. With gates every second
run is one with buffers.

Checked after each run: the model has the bits of a server alone, and each round counts each device
once; with buffers the model has the bits of what the ledger's rows say, and each accepted update
counts in one; every acknowledgement that a device saw has its row; each server that began to drive
has the next epoch. Exit status 1 if anything is broken.
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

from fedloom.server.ledger import Ledger
from fedloom.server.ledger.audit_trail import Filter
from fedloom.server.ledger.lists.order import Cut

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from support.object_store import CREDENTIALS, S3Server
from support.postgresql import PostgreSQL
from support.replicas import DEVICES, Replicas, acknowledged, alone, buffers, check_buffers, spec
from support.site_servers import Cluster, wait_until, write_model

PLACES = {
    # place: most crossings to wait for before dying there
    "round.opened": 2, "offer.sent": 8, "upload.chunk": 8, "upload.synced": 8, "accept.before": 8,
    "accept.after": 8, "fold.after": 8, "round.closing": 2, "commit.stored": 2, "commit.model": 2,
    "commit.ledger": 2, "store.part": 8, "store.model": 2,
}  # fmt: skip
AT_GATES = {
    "mail.taken": 8, "inbox.taken": 16, "seal.stored": 2, "seal.noted": 2, "seal.merged": 3,
}  # fmt: skip
STOPPED_S = (4.0, 8.0)
STOP_EVERY_S = 25.0
LIMIT_S = 1500.0


class ReplicasCrash:
    """One run over replicas that die again and again."""

    def __init__(self, folder, database, store, seed, rounds, *, gates):
        self.folder, self.draw, self.rounds = folder, random.Random(seed), rounds
        self.buffered = gates and not seed % 2
        self.gates, self.places = gates, PLACES | (AT_GATES if gates else {})
        self.replicas = Replicas(folder, database, store, 3 if gates else 2, gates=gates)
        self.database = database
        self.ended = Counter()  # how servers ended, by exit status
        self.cluster = Cluster(folder)
        self.stopped = {}  # replica → when to continue it
        self.next_stop = time.monotonic() + STOP_EVERY_S

    def play(self, model, target):
        """Submit the run, and break servers until it ends; the last model's digest."""
        driver = self.replicas.driver
        configs = self.cluster.enrol(driver, DEVICES)
        self.cluster.run_devices(driver, configs)
        wait_until(lambda: driver.online() == len(DEVICES), "devices attend")
        run = buffers(rounds=2 * self.rounds) if self.buffered else settings(self.rounds)
        self.run, self.model = driver.submit(run, model), model
        for each in reversed(self.replicas.all):
            each.kill()
        ledger = Ledger(self.database)
        deadline = time.monotonic() + LIMIT_S
        try:
            while (row := ledger.run(self.run)).state != "finished":
                assert row.state == "running", row.reason
                assert time.monotonic() < deadline, "".join(
                    each.log()[-4000:] for each in self.replicas.all
                )
                self.supervise(armed=self.ended.total() < target)
                time.sleep(0.1)
        finally:
            ledger.close()
        return row.model

    def logs(self):
        return "".join(each.log()[-4000:] for each in self.replicas.all)

    def supervise(self, *, armed):
        now = time.monotonic()
        for replica in self.replicas.all:
            if replica.process.poll() is not None:
                self.stopped.pop(replica, None)
                self.ended[replica.process.returncode] += 1
                place = self.draw.choice(sorted(self.places))
                count = self.draw.randint(1, self.places[place])
                replica.launch(f"{place}:{count}" if armed else "")
            elif self.stopped.get(replica, now + 1.0) <= now:
                del self.stopped[replica]
                replica.process.send_signal(signal.SIGCONT)
        if armed and now > self.next_stop and not self.stopped:
            able = [r for r in self.replicas.all if (r.serves() if self.gates else r.drives)]
            if able:
                replica = self.draw.choice(able)
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
        numbers = {each.number for each in ledger.list_rounds(self.run)}
        rows = {(each.round, each.client) for n in numbers for each in ledger.accepted(self.run, n)}
        if self.buffered:
            try:
                found = check_buffers(self.replicas.first, self.run, self.model)
                print(f"updates by models behind: {dict(sorted(found.items()))}")
            except AssertionError as error:
                yield f"buffers: {error}"
        else:
            if got != expected:
                yield f"the model is {got}, expected {expected}"
            if rows != {(n, name) for n in numbers for name in DEVICES}:
                yield "a round lacks a device"
        states = {each.state for each in ledger.list_rounds(self.run)}
        if states != {"committed"}:
            yield f"rounds are {states}"
        self.acknowledged = acknowledged(self.folder)
        if lost := self.acknowledged - rows:
            yield f"acknowledged, and lost: {sorted(lost)}"
        entries = [*ledger.trail.listed(Filter(action="driver"), Cut(limit=100_000))][::-1]
        epochs = [epoch_of(each) for each in entries if each["action"] == "driver.begin"]
        self.epochs = len(epochs)
        if any(after != before + 1 for before, after in pairwise(epochs)):
            yield f"epochs: {epochs}"

    def close(self):
        self.cluster.close()
        self.replicas.close()


def epoch_of(entry):
    """The epoch in an entry of the audit trail."""
    return int(re.search(r'"epoch": ?(\d+)', entry["detail"])[1])


def settings(rounds):
    cohort = {"goal": len(DEVICES), "quorum": len(DEVICES), "deadline_s": 900.0}
    return spec(rounds=rounds, cohort=cohort)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--gates", action="store_true", help="three replicas that serve devices")
    arguments = parser.parse_args()
    os.environ.update(CREDENTIALS)
    ended, faults, seed, acknowledged, epochs = Counter(), [], arguments.seed, 0, 0
    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary)
        model = top / "model.safetensors"
        write_model(model, 50_000)
        (top / "alone").mkdir()
        expected = alone(top / "alone", model, settings(arguments.rounds))
        s3, database = S3Server(top / "s3.log"), PostgreSQL()
        try:
            while ended.total() < arguments.kills and not faults:
                folder = top / str(seed)
                folder.mkdir()
                url, store = database.create(f"pair{seed}"), s3.url(f"pair{seed}")
                test = ReplicasCrash(
                    folder, url, store, seed, arguments.rounds, gates=arguments.gates
                )
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
