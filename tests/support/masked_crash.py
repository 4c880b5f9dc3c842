"""The crash test of masked rounds: real processes are killed in every phase of their sessions.

A client that is killed has dropped out of its session, so the survivors differ from run to run.
Whoever they are, each model must have the bits of unmasked sums of the survivors in the ledger.
Clients tell the test what they do (`masked_crash_client.py`), and the test holds against it, and
against the ledger and the disks:

- a client masks no second body for a model, unless the first one's session was proved dead;
- in a session it signs the survivors or that it gave up, not both, and reveals once;
- of each member, shares of one kind are revealed;
- no secret is on a client's disk, and on the server's neither a secret nor an update in clear;
- no update in clear is on a client's disk when its masked body is sent.

A run ends early where too few devices may mask another update of its model; others with the next
seeds take the rest of the kills. Several runs are played at a time: most of a round is waiting.

By hand: python tests/support/masked_crash.py --kills 200 --seed 7
"""

import argparse
import io
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

import numpy as np
import sqlalchemy as sa

from fedloom.protocol.task_description import task_seed
from fedloom.protocol.tensors.container import read_params
from fedloom.server.ledger import Ledger
from fedloom.server.planning.spec import parse
from fedloom.strategies import DELTA, Full, Partial, weight_units
from fedloom.strategies.exact.partial import TensorSpec

sys.path.insert(0, str(Path(__file__).parent))
from crash import CLIENT_PLACES, NUM_CLIENTS, SERVER_PLACES, CrashTest, has_finished
from crash_client import local_step

SESSION_SERVER_PLACES = {
    "masking.opened": 1,
    "masking.stored": 60,
    "masking.moved": 10,
    "masking.unmasked": 2,
    "upload.chunk": 17,
}
SESSION_CLIENT_PLACES = dict.fromkeys(
    (
        "client.masking.ready",
        "client.masking.left",
        "client.masking.marked",
        "client.masking.body",
        "client.masking.agree",
        "client.masking.reveal",
    ),
    4,
)
ARMED_CLIENTS = 2
"""Client processes that are killed: with more, sessions of nine seldom reach their threshold."""
MASKING = {
    "group": 9, "min_group": 4, "sum_bits": 32, "precision": 1.0,
    "phase_s": 3.0, "upload_s": 5.0, "session_s": 40.0,
}  # fmt: skip
COHORT = {"goal": NUM_CLIENTS - 2, "quorum": 4, "deadline_s": 6.0, "patience_s": 3.0}
MAX_ABS = 0.25
SPENT = "a masked update of this model has left this device"
"""How a device says why it declines another task of the same model."""
UNEXPECTED = "raised by servicer method"
"""What gRPC logs of an error that no code of the server expects."""
FLOOR = "\n[masking]\nmin_group = 4\n"


class MaskedCrashTest(CrashTest):
    """A run of masked rounds with kills."""

    num_processes = 9
    client_script = "masked_crash_client.py"
    shape = (100, 70)
    kill_s = 60.0

    def __init__(self, directory, kills, seed, rounds, *, forgets=False):
        super().__init__(directory, kills, seed, rounds)
        self.told_in = directory / "told"
        self.client_options = (str(self.told_in), *(("--forgets",) if forgets else ()))
        self.found = Counter()
        self.stands_still = False

    @property
    def client_places(self):
        """Where a client may die."""
        own = {name: 3 for name in CLIENT_PLACES if name != "client.upload.chunk"}
        return own | SESSION_CLIENT_PLACES

    @property
    def places(self):
        """Where the server may die: also between the messages of sessions."""
        kept = ("round.", "commit.")
        rounds = {name: most for name, most in SERVER_PLACES.items() if name.startswith(kept)}
        return rounds | SESSION_SERVER_PLACES

    def prepare(self):
        super().prepare()
        for client in range(NUM_CLIENTS):
            folder = self.directory / f"c{client}"
            folder.mkdir(exist_ok=True)
            (folder / "policy.toml").write_text(FLOOR)

    def spec(self):
        """Rounds that close with the clients that are left, in sessions of few."""
        own = {"cohort": COHORT, "masking": MASKING, "max_abs": MAX_ABS, "max_weight": 1000.0}
        return super().spec() | own

    def arms(self, process):
        return super().arms(process) and process in (self.server, *self.clients[:ARMED_CLIENTS])

    def finished(self):
        """A run that pauses, as three rounds failed, is continued.

        One that cannot continue ends the test: both sessions of a round have failed, so that too
        few devices may mask an update of its model.
        """
        ledger = Ledger.in_directory(self.state)
        row = ledger.run("crash-1")
        members = ledger.members("crash-1", row.last_round)
        ledger.close()
        if row.state != "paused":
            return has_finished(row)
        spent = [m.client for m in members if m.reason.startswith(SPENT)]
        self.stands_still = NUM_CLIENTS - len(spent) < COHORT["quorum"]
        if not self.stands_still:
            command = str(Path(sys.executable).with_name("fedloom"))
            again = [command, "run", "resume", "crash-1", "--yes", "--dir", str(self.state)]
            subprocess.run(again, check=False, capture_output=True, timeout=60)
        return self.stands_still

    # ---- findings --------------------------------------------------------------------------------

    def told(self):
        """What clients told, in the order of their files."""
        files = sorted(self.told_in.glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def killed(self, process):
        """Search what the process left."""
        self.search(self.server_files() if process is self.server else self.client_files(process))

    def server_files(self):
        return [p for p in self.state.rglob("*") if p.is_file() and p.parent.name != "models"]

    def client_files(self, process):
        folders = [Path(part).parent for part in process.command if part.endswith("client.toml")]
        return [p for f in folders for p in f.rglob("*") if p.is_file() and "models" not in p.parts]

    def search(self, files):
        told = self.told()
        on_server = bool(files) and files[0].is_relative_to(self.state)
        kinds = ("secret", "plain") if on_server else ("secret", "share")
        patterns = {bytes.fromhex(e["hex"]) for e in told if e["event"] in kinds}
        for path in files:
            for pattern in in_file(path, patterns):
                self.found[f"{path.name}: {pattern[:4].hex()}…"] += 1
        self.report.searched = max(getattr(self.report, "searched", 0), len(patterns))

    def judge(self):
        ledger = Ledger.in_directory(self.state)
        self.rows = {r.number: r for r in ledger.list_rounds("crash-1")}
        model = ledger.run("crash-1").model
        with ledger._engine.connect() as connection:
            found = sa.text("select round, session, state, members, masked from masking_sessions")
            self.sessions = [dict(row) for row in connection.execute(found).mappings()]
            found = sa.text("select round, session, phase, client, digest from masking_messages")
            self.sent = [dict(row) for row in connection.execute(found).mappings()]
        ledger.close()
        for process in (self.server, *self.clients):
            process.end()
            self.killed(process)
        survivors = self.survivors()
        self.report.counted = {number: len(names) for number, names in survivors.items()}
        told = self.told()
        self.report.lost = [
            *broken(told, self.sent), *masked_twice(told, self.bases(), self.sent, self.proved()),
            *(f"on a disk: {what}" for what in self.found),
            *(f"the server failed: {text}" for text in failures(self.log_text())),
        ]  # fmt: skip
        wanted = expected_model(self.initial, survivors, parse(self.spec()))
        got = read_params(self.state / "models" / f"{model}.safetensors")
        self.report.same_bits = all(got[n].tobytes() == wanted[n].tobytes() for n in wanted)

    def log_text(self):
        self.log.flush()
        return (self.directory / "log").read_text(errors="replace")

    def survivors(self):
        """Committed round → the members whose bodies are in its sums."""
        found = {n: [] for n, row in sorted(self.rows.items()) if row.state == "committed"}
        for row in self.sessions:
            if row["state"] == "done":
                found[row["round"]] += json.loads(row["masked"])
        return {number: sorted(names) for number, names in found.items()}

    def bases(self):
        """Round → the committed round whose model it begins with."""
        committed, base = 0, {}
        for number in sorted(self.rows):
            base[number] = committed
            committed = number if self.rows[number].state == "committed" else committed
        return base

    def proved(self):
        """(round, client) of members of sessions of which t gave up."""
        closed = Counter((s["round"], s["session"]) for s in self.sent if s["phase"] == "closing")
        dead = set()
        for row in self.sessions:
            members = json.loads(row["members"])
            if closed[row["round"], row["session"]] >= 2 * len(members) // 3 + 1:
                dead |= {(row["round"], name) for name in members}
        return dead


def failures(log):
    """Tracebacks of errors that the server's code does not expect."""
    return [part[:5000].split("\nINFO:")[0] for part in log.split(UNEXPECTED)[1:]]


def in_file(path, patterns):
    """Which of the patterns a file has, as bytes or in hex."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    return [p for p in patterns if p in raw or p.hex().encode() in raw]


def masked_twice(told, base, sent, dead):
    """Clients with two masked bodies for one model, without proof that the first is dead."""
    bodies = {(e["round"], e["client"]) for e in told if e["event"] == "body"}
    bodies |= {(s["round"], s["client"]) for s in sent if s["phase"] == "body"}
    count = Counter((base[number], client) for number, client in bodies - dead)
    again = Counter((e["round"], e["client"]) for e in told if e["event"] == "body")
    return [f"{of} masked {n} bodies of one model" for of, n in count.items() if n > 1] + [
        f"{of} masked {n} bodies in one round" for of, n in again.items() if n > 1
    ]


def broken(told, sent):
    """Rules of sessions that what was sent breaks; told by clients, and of the ledger."""
    said = defaultdict(set)
    for event in told:
        if event["event"] in ("agreement", "closing", "reveal"):
            said[event["session"], event["client"], event["event"]].add(event["digest"])
    stored = {(s["round"], s["session"], s["client"], s["phase"]) for s in sent}
    kinds = defaultdict(set)
    for event in told:
        if event["event"] == "reveal":
            for place, kind in enumerate(event["kinds"]):
                kinds[event["session"], place].add(kind)
    return [
        *(f"{at} said {len(each)}" for at, each in said.items() if len(each) > 1),
        *(f"{at[:2]} agreed and closed" for at in said
          if at[2] == "agreement" and (*at[:2], "closing") in said),
        *(f"{at[:3]} agreed and closed, says the ledger" for at in stored
          if at[3] == "agreement" and (*at[:3], "closing") in stored),
        *(f"both shares of {at} revealed" for at, k in kinds.items() if {"s", "b"} <= k),
        *(f"{e['client']} sent a body with its update in clear beside it" for e in told
          if e["event"] == "upload" and e["clear"]),
    ]  # fmt: skip


def expected_model(initial, survivors, run):
    """The model of unmasked sums of these survivors."""
    specs = {(DELTA, n): TensorSpec(shape=a.shape, dtype=a.dtype) for n, a in initial.items()}
    strategy, grid = run.build_strategy(), run.grid()
    params, state = dict(initial), strategy.init(initial)
    for number, names in survivors.items():
        partial = Partial(specs, grid.exponent, narrow=True)
        for client in names:
            seed = task_seed(run.seed, number, client)
            units = weight_units(1 + seed % 1000)
            for name, new in local_step(params, seed).items():
                delta = np.subtract(new, params[name], dtype=np.float32)
                partial.add_array((DELTA, name), Full(), units, delta)
        params, state = strategy.finish(state, params, partial)
    return params


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=0, help="default: a round for three kills")
    parser.add_argument("--forgets", action="store_true", help="break a rule: the test must fail")
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it")
    parser.add_argument("--jobs", type=int, default=3, help="runs at a time")
    arguments = parser.parse_args()
    kills, counted, holds, playing = 0, 0, True, {}
    seeds = count(arguments.seed)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        while playing or (holds and kills < arguments.kills):
            missing = arguments.kills - kills if holds else 0
            for seed in islice(seeds, arguments.jobs - len(playing) if missing > 0 else 0):
                share = -(-missing // arguments.jobs)
                playing[pool.submit(played, arguments, share, seed)] = seed
            for done in wait(playing, return_when=FIRST_COMPLETED).done:
                found, seed = done.result(), playing.pop(done)
                kills, counted = kills + found.kills, counted + found.counted
                holds = holds and found.holds
                so_far = f"{kills} kills, {counted} updates in models until here"
                print(f"{found.text}seed {seed}: {so_far}", flush=True)
    return 0 if holds and counted else 1


@dataclass(frozen=True)
class Found:
    """What a run found.

    Attributes:
        kills: number of them.
        counted: updates in its models.
        holds: whether nothing was broken.
        text: for people.
    """

    kills: int
    counted: int
    holds: bool
    text: str


def played(arguments, kills, seed):
    """Play a run until its kills have happened, or until it stands still."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.keep / str(seed) if arguments.keep else Path(temporary)
        directory.mkdir(exist_ok=True, parents=True)
        rounds = arguments.rounds or max(3, kills // 3)
        test = MaskedCrashTest(directory, kills, seed, rounds, forgets=arguments.forgets)
        test.run()
    report, text = test.report, io.StringIO()
    with redirect_stdout(text):
        show(test)
    counted = sum(report.counted.values())
    holds = report.same_bits and not report.lost
    return Found(report.num_kills, counted, holds, text.getvalue())


def show(test):
    """Print what a run found."""
    report = test.report
    print(f"{report.num_kills} kills over {len(test.rows)} rounds in {report.seconds:.0f} s")
    if test.stands_still:
        print("the run stands still: too few devices may mask an update of its model")
    for place, number in sorted(report.kills.items()):
        print(f"  {number:5d}  {place}")
    phases = Counter(s["phase"] for s in test.sent)
    print(f"sessions: {dict(Counter(row['state'] for row in test.sessions))}")
    print(f"messages: {dict(phases)}; updates in models: {sum(report.counted.values())}")
    print(f"members of sessions that were proved dead: {len(test.proved())}")
    print(f"secrets and samples searched for at every kill, in the end: {report.searched}")
    print(f"broken: {'; '.join(report.lost) or 'nothing'}")
    print(f"the bits of unmasked sums: {report.same_bits}")


if __name__ == "__main__":
    sys.exit(main())
