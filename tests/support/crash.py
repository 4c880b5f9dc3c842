"""The crash test: real processes are killed repeatedly, and the result must not change.

A server and a few client processes perform a run of federated averaging. A seeded plan gives each
new process a place to die at (`fedloom.protocol.crash_points`) or a moment, by SIGKILL; killed
processes are restarted. In the end the model must have the bits of a run without faults, and every
acknowledged update must be in the ledger exactly once.

By hand: python tests/support/crash.py --kills 2000 --seed 7
"""

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from fedloom.client.identity.enrol import enrol
from fedloom.client.training.client_rule import RuleContext, apply_rule
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.task_description import task_seed
from fedloom.protocol.tensors.container import write_file
from fedloom.protocol.trust import tokens
from fedloom.protocol.trust.noise_stream import key_of_seed, keyed
from fedloom.protocol.updates.message import TensorPart
from fedloom.server import config as server_config
from fedloom.server.ledger import Ledger
from fedloom.server.pki.authority import Authority
from fedloom.server.planning import limits
from fedloom.server.planning.spec import parse
from fedloom.strategies import DELTA, Full, Partial, privacy, reduced, weight_units
from fedloom.strategies.exact.partial import SCALAR, TensorSpec
from fedloom.strategies.privacy.release import WITHIN
from fedloom.strategies.robust import ArrayUpdates
from fedloom.strategies.staleness import discounted

sys.path.insert(0, str(Path(__file__).parent))
from crash_client import local_step
from ports import steady_port
from storage import storage_of

SERVER_PLACES = {
    # place: most crossings to wait for before dying there
    "round.opened": 1,
    "offer.sent": 18,
    "upload.chunk": 40,
    "upload.synced": 17,
    "accept.before": 17,
    "accept.after": 17,
    "fold.after": 17,
    "checkpoint.before": 1,
    "checkpoint.after": 1,
    "round.closing": 1,
    "commit.model": 1,
    "commit.stored": 1,
    "commit.ledger": 1,
}
STORE_PLACES = {"store.part": 17, "store.model": 2}
"""Likewise, of a server with an object store."""
FOLD_PLACES = ("fold.after", "checkpoint.before", "checkpoint.after")
"""Crossed only where updates are folded as they come."""
CLIENT_PLACES = {
    "client.download.chunk": 2,
    "client.train.before": 3,
    "client.train.after": 3,
    "client.outbox.written": 4,
    "client.upload.chunk": 8,
}
BUFFER = {"mode": "buffered", "goal": 5, "concurrency": 12}
"""Of a run of buffers: so few that two or three models pass while a client is at work."""
PRIVATE = {
    "clip": 1.0, "clip_quantile": 0.5, "noise_multiplier": 1.0, "delta": 1e-3, "noise": "seed",
}  # fmt: skip
"""Of a private run: the clip follows the quantile, so every round depends on the one before."""
NUM_CLIENTS = 18
NUM_PROCESSES = 3
DEADLINE_S = 120.0
RESTART_PAUSE_S = 0.05


@dataclass
class Report:
    """The findings of a crash test."""

    kills: dict = field(default_factory=dict)
    rounds: int = 0
    resumed_s: list = field(default_factory=list)
    same_bits: bool = False
    acknowledged: int = 0
    lost: list = field(default_factory=list)
    counted: dict = field(default_factory=dict)
    staleness: dict = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def num_kills(self):
        return sum(self.kills.values())


def has_finished(row):
    """Whether a run has finished; it must not have ended otherwise."""
    if row.state not in ("running", "finished"):
        raise AssertionError(f"the run is {row.state}: {row.reason}")
    return row.state == "finished"


class Process:
    """A process that is restarted whenever it ends."""

    def __init__(self, name, command, places, log):
        self.name = name
        self.command = command
        self.places = places
        self.log = log
        self.popen = None
        self.place = None
        self.kill_at = None

    def start(self, rng, armed):
        environment = dict(os.environ)
        environment.pop("FEDLOOM_KILL", None)
        self.place, self.kill_at = None, None
        if armed:
            self.place = rng.choice([*self.places, "any moment"])
            if self.place == "any moment":
                self.kill_at = time.monotonic() + rng.uniform(0.2, 2.5)
            else:
                count = rng.randint(1, self.places[self.place])
                environment["FEDLOOM_KILL"] = f"{self.place}:{count}"
        self.popen = subprocess.Popen(
            self.command, env=environment, stdout=self.log, stderr=subprocess.STDOUT
        )

    def died(self):
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            self.popen.send_signal(signal.SIGKILL)
            self.kill_at = None
            self.popen.wait()
        code = self.popen.poll()
        if code is None:
            return False
        if code != -signal.SIGKILL:
            raise AssertionError(f"{self.name} ended by itself with {code}: see its log")
        return True

    def end(self):
        if self.popen is not None and self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(20)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()


def spec(rounds, aggregation, strategy=None, *, buffered=False, private=False):
    cohort = BUFFER if buffered else {"goal": NUM_CLIENTS}
    return {
        "aggregation": aggregation,
        "strategy": strategy or {"name": "fedavg"},
        **({"weighting": "uniform"} if strategy else {}),
        "name": "crash",
        "rounds": rounds,
        "evaluate": False,
        "cohort": {"quorum": cohort["goal"], "deadline_s": 3600.0, "patience_s": 3600.0, **cohort},
        "train": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1},
        "privacy": PRIVATE if private else {},
    }


def private_model(initial, rounds):
    """The model of a private run without faults: clipped updates, counted bits, seeded noise."""
    run = parse(spec(rounds, {"name": "mean"}, private=True))
    tensors = {n: TensorSpec(shape=a.shape, dtype=a.dtype) for n, a in initial.items()}
    manifest = Manifest(dtypes=dict.fromkeys(initial, "F32"), specs=tensors, size_bytes=0)
    strategy, release, stream = (
        run.build_strategy(), limits.release(run, manifest), keyed(key_of_seed(run.seed)),
    )  # fmt: skip
    params, state = dict(initial), strategy.init(initial)
    for number in range(1, rounds + 1):
        partial = limits.empty_sum(run, manifest)
        bound = release.clip(privacy.memory_of(release, state))
        for client in range(NUM_CLIENTS):
            new = local_step(params, task_seed(run.seed, number, f"c{client}"))
            deltas = [np.subtract(new[n], params[n], dtype=np.float32) for n in sorted(new)]
            clipped, within = privacy.clip(deltas, bound)
            for name, values in zip(sorted(new), clipped, strict=True):
                partial.add_array((DELTA, name), Full(), weight_units(1), values)
            bit = np.array([0.5 if within else -0.5])
            partial.add_array((SCALAR, WITHIN), Full(), weight_units(1), bit)
        params, state = privacy.finish(
            strategy, release, state, params, partial, round=number, stream=stream
        )
    return params


def expected_model(initial, rounds, aggregation, strategy=None):
    """The model of a run without faults, computed by hand."""
    run = parse(spec(rounds, aggregation, strategy))
    specs = {n: TensorSpec(shape=a.shape, dtype=a.dtype) for n, a in initial.items()}
    strategy = run.build_strategy()
    params, state, memory = dict(initial), strategy.init(initial), {}
    for number in range(1, rounds + 1):
        partial, each = Partial(strategy.specs(specs), run.exponent()), {}
        for client in range(NUM_CLIENTS):
            seed = task_seed(run.seed, number, f"c{client}")
            new, examples = local_step(params, seed), 1 + seed % 1000
            parts = [TensorPart(DELTA, n, Full(), v, params[n]) for n, v in new.items()]
            local = RuleContext(received=strategy.sends(state), memory=memory.get(client, {}))
            settings = run.local_training().at(number, NUM_CLIENTS)
            settled = apply_rule(strategy.rule, parts, local, settings, examples)
            memory[client] = settled.memory
            units = weight_units(1 if run.weighting == "uniform" else examples)
            for part in settled.parts:
                less = 0 if part.less is None else part.less
                delta = np.subtract(part.values, less, dtype=np.float32)
                partial.add_array((part.group, part.tensor), Full(), units, delta)
                each.setdefault(f"c{client}", {})[part.tensor] = delta
            partial.count += 1
        means = partial
        if strategy.needs == "each":
            means = reduced(strategy, state, ArrayUpdates.of(each))
        params, state = strategy.finish(state, params, means)
    return params


def replayed_model(initial, settings, buffers, seed_name=str):
    """The model that the algebra makes of what a ledger says: who, on which model, how stale.

    Args:
        initial: model.
        settings: of the run.
        buffers: for each, (client, round of its task, staleness) of the updates in it.
        seed_name: of a client, the name from which it draws.
    """
    run = parse(settings)
    weighting = run.buffer_config().staleness
    specs = {(DELTA, n): TensorSpec(shape=a.shape, dtype=a.dtype) for n, a in initial.items()}
    strategy = run.build_strategy()
    models, state = {1: dict(initial)}, strategy.init(initial)
    for number, updates in enumerate(buffers, 1):
        partial = Partial(specs, run.exponent())
        for client, origin, staleness in updates:
            seed, base = task_seed(run.seed, origin, seed_name(client)), models[origin]
            units = weight_units(1 + seed % 1000)
            assert staleness == number - origin
            for name, value in local_step(base, seed).items():
                delta = np.subtract(value, base[name], dtype=np.float32)
                counted = discounted(units, weighting(staleness))
                partial.add_array((DELTA, name), Full(), units, delta, value_units=counted)
        models[number + 1], state = strategy.finish(state, models[number], partial)
    return models[len(buffers) + 1]


class CrashTest:
    """A run with kills; with an object store, the server's disk is lost with each of its kills."""

    num_processes = NUM_PROCESSES
    client_places = CLIENT_PLACES
    client_script = "crash_client.py"
    client_options = ()
    kill_s = 10.0
    shape = (1000, 700)

    def __init__(
        self, directory, kills, seed, rounds, aggregation="mean", *, strategy=None, buffered=False,
        private=False, store="",
    ):  # fmt: skip
        self.private = private
        self.config = server_config.ServerConfig(
            fleet=f"127.0.0.1:{steady_port()}", enrolment=f"127.0.0.1:{steady_port()}", store=store,
            database=f"sqlite:///{directory / 'ledger.sqlite'}" if store else "",
        )  # fmt: skip
        self.strategy = strategy
        self.aggregation = aggregation if isinstance(aggregation, dict) else {"name": aggregation}
        self.buffered = buffered
        self.directory = directory
        self.kills = kills
        self.rng = random.Random(seed)
        self.rounds = rounds
        self.state = directory / "server"
        self.ready = directory / "ready"
        self.report = Report(rounds=rounds)
        self.log = (directory / "log").open("wb")
        self.clients = []
        self.waiting_since = None
        self.initial = {
            "weight": np.zeros(self.shape, np.float32),
            "bias": np.zeros(self.shape[1], np.float32),
        }

    @property
    def goal(self):
        return BUFFER["goal"] if self.buffered else NUM_CLIENTS

    @property
    def places(self):
        """Where a server may die; a buffer is too small for a checkpoint of its sum."""
        never = () if self.aggregation["name"] == "mean" else FOLD_PLACES
        if self.buffered:
            never = ("checkpoint.before", "checkpoint.after")
        places = SERVER_PLACES | (STORE_PLACES if self.config.store else {})
        return {place: count for place, count in places.items() if place not in never}

    def ledger(self):
        return Ledger.in_directory(self.state, self.config.database)

    def prepare(self):
        self.state.mkdir()
        server_config.write(self.state, self.config)
        authority = Authority.create(self.state / "pki", self.config.federation, datetime.now(UTC))
        ledger = self.ledger()
        self.tokens = []
        for client in range(NUM_CLIENTS):
            token = tokens.make_token(authority.root_pin)
            hashed = tokens.secret_hash(token.secret)
            ledger.add_token(token.id, hashed, f"c{client}", time.time() + 600)
            self.tokens.append(token.text())
        ledger.close()
        self.enrolment = self.config.enrolment
        command = (
            "import logging, sys; from pathlib import Path; from fedloom.server.app import run;"
            "logging.basicConfig(level=logging.INFO);"
            "run(Path(sys.argv[1]), ready=Path(sys.argv[2]))"
        )
        self.server = Process(
            "server",
            [sys.executable, "-c", command, str(self.state), str(self.ready)],
            {place: min(count, self.goal) for place, count in self.places.items()},
            self.log,
        )

    def start_server(self, *, armed):
        self.ready.unlink(missing_ok=True)
        self.waiting_since = time.monotonic()
        self.server.start(self.rng, armed)

    async def enrol_all(self):
        while not self.ready.exists():
            self.server.died()  # raises if it ended without a kill
            await asyncio.sleep(0.02)
        for client, token in enumerate(self.tokens):
            config = self.directory / f"c{client}" / "client.toml"
            await enrol(self.enrolment, token, config)
            text = config.read_text().replace("# reconnect_s = 60.0", "reconnect_s = 0.5")
            config.write_text(text)

    def submit(self):
        """Write the run into the ledger before the server starts; the server begins it."""
        storage = storage_of(self.state, self.config)
        models = storage.models
        write_file(self.directory / "initial.safetensors", self.initial)
        digest = models.add(self.directory / "initial.safetensors")
        run = parse(self.spec())
        storage.ledger.add_run(
            {"id": "crash-1", "name": run.name, "spec": run.as_dict(), "state": "running",
             "reason": "", "model": digest},
            models.path(digest).stat().st_size,
        )  # fmt: skip
        storage.close()

    def spec(self):
        """The settings of the run."""
        kind = {"buffered": self.buffered, "private": self.private}
        return spec(self.rounds, self.aggregation, self.strategy, **kind)

    def run(self):
        begun = time.monotonic()
        self.prepare()
        try:
            self.start_server(armed=False)
            asyncio.run(self.enrol_all())
            self.server.end()
            self.submit()
            self.fire()
            self.judge()
        finally:
            for process in (self.server, *self.clients):
                process.end()
            self.log.close()
        self.report.seconds = time.monotonic() - begun
        return self.report

    def fire(self):
        """Start all processes, kill and restart them until the run has finished."""
        each = NUM_CLIENTS // self.num_processes
        script = str(Path(__file__).with_name(self.client_script))
        for number in range(self.num_processes):
            names = [f"c{number * each + i}" for i in range(each)]
            configs = [str(self.directory / name / "client.toml") for name in names]
            command = [sys.executable, script, *self.client_options, *configs]
            self.clients.append(Process(f"clients {number}", command, self.client_places, self.log))
        self.start_server(armed=self.kills > 0)
        for process in self.clients:
            process.start(self.rng, self.arms(process))
        deadline = time.monotonic() + DEADLINE_S + self.kill_s * self.kills
        while not self.finished():
            if time.monotonic() > deadline:
                raise AssertionError(f"no end in sight: {json.dumps(self.report.kills)}")
            for _ in range(30):
                time.sleep(0.01)
                self.look()

    def look(self):
        """Notice which processes are ready and which have died."""
        if self.waiting_since is not None and self.ready.exists():
            self.report.resumed_s.append(time.monotonic() - self.waiting_since)
            self.waiting_since = None
        for process in (self.server, *self.clients):
            if process.died():
                place = f"{process.name.split()[0]}: {process.place}"
                self.report.kills[place] = self.report.kills.get(place, 0) + 1
                self.killed(process)
                time.sleep(RESTART_PAUSE_S)
                if process is self.server:
                    self.start_server(armed=self.arms(process))
                else:
                    process.start(self.rng, self.arms(process))

    def arms(self, process):
        """Whether a process that starts is to be killed."""
        return self.report.num_kills < self.kills

    def killed(self, process):
        """Look at what a process has left, before it starts again."""
        if process is self.server and self.config.store:
            for name in ("models", "spool"):
                shutil.rmtree(self.state / name, ignore_errors=True)

    def finished(self):
        ledger = self.ledger()
        row = ledger.run("crash-1")
        ledger.close()
        return has_finished(row)

    def judge(self):
        ledger = self.ledger()
        rounds = ledger.list_rounds("crash-1")
        self.report.counted = {r.number: r.accepted for r in rounds}
        model = ledger.run("crash-1").model
        buffers = [
            [(u.client, u.round, u.staleness) for u in ledger.accepted("crash-1", number)]
            for number in self.report.counted
        ]
        held = {(number, client) for updates in buffers for client, number, _ in updates}
        self.report.staleness = Counter(s for updates in buffers for _, _, s in updates)
        ledger.close()
        self.log.flush()
        log = (self.directory / "log").read_text(errors="replace")
        pattern = re.compile(r"(c\d+): update of round (\d+) of \S+ accepted")
        acknowledged = {(int(number), client) for client, number in pattern.findall(log)}
        self.report.acknowledged = len(acknowledged)
        self.report.lost = sorted(acknowledged - held)
        self.server.end()
        storage = storage_of(self.state, self.config)
        got = storage.models.params(model)
        storage.close()
        if self.buffered:
            wanted = replayed_model(self.initial, self.spec(), buffers)
        elif self.private:
            wanted = private_model(self.initial, self.rounds)
        else:
            wanted = expected_model(self.initial, self.rounds, self.aggregation, self.strategy)
        self.report.same_bits = all(
            got[name].tobytes() == wanted[name].tobytes() for name in wanted
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=0, help="default: a round for two kills")
    parser.add_argument("--aggregation", default="mean", help="one that needs no settings")
    parser.add_argument("--buffered", action="store_true", help="asynchronous rounds")
    parser.add_argument("--store", default="", help="of the server, which loses its disk")
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it")
    arguments = parser.parse_args()
    rounds = arguments.rounds or max(4, arguments.kills // 2)
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.keep or Path(temporary)
        directory.mkdir(exist_ok=True, parents=True)
        test = CrashTest(
            directory, arguments.kills, arguments.seed, rounds, arguments.aggregation,
            buffered=arguments.buffered, store=arguments.store,
        )  # fmt: skip
        report = test.run()
    print(f"{report.num_kills} kills over {report.rounds} rounds in {report.seconds:.0f} s")
    for place, number in sorted(report.kills.items()):
        print(f"  {number:5d}  {place}")
    print(f"server ready again within {max(report.resumed_s):.2f} s, at most")
    if arguments.buffered:
        print(f"models behind: {dict(sorted(report.staleness.items()))}")
    exact = all(n >= test.goal for n in report.counted.values())
    exact = exact and (arguments.buffered or set(report.counted.values()) == {NUM_CLIENTS})
    print(f"updates counted once: {exact}")
    print(f"acknowledgements seen: {report.acknowledged}, lost: {report.lost or 'none'}")
    print(f"same bits as without faults: {report.same_bits}")
    return 0 if report.same_bits and exact and not report.lost else 1


if __name__ == "__main__":
    sys.exit(main())
