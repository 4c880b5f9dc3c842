"""A server under a fleet that attends for long: does anything grow, and does everybody get a turn?

Thousands of clients attend over mTLS, each with its own certificate and connection. A share of them
leaves in every minute and comes back some seconds later: half close their connection, a quarter
is reset, a quarter vanishes without a word. Meanwhile one run commits round after round; each
member waits some seconds as if it trained. Then the run is stopped and clients come and go
without rounds; at last all leave at once.

Sampled every few seconds: the server's memory, descriptors, threads, CPU and ledger. Their slopes
are robust (Theil and Sen) and leave out a warm-up. Prints a table and verdicts, writes
out/soak.json and out/soak.png, and exits with 1 if a verdict fails.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import resource
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from deployment import OUT, cpu_s, deployed, memory_bytes, model, report
from soak_clients import ENDS, Work, hold
from soak_statistics import fairness, slope
from upload import deltas, make_body

from fedloom.cli.connection.api_client import Control
from fedloom.protocol.tensors.container import read_params
from fedloom.server.ledger.refusals import KEPT_REFUSALS

SPAWN = multiprocessing.get_context("spawn")
OF_ROUNDS = ("rounds", "cohorts", "updates", "models", "runs", "populations")
"""Tables that hold records of runs and rounds."""
WARM_UP = 1 / 4
"""Share of the rounds that is left out of slopes."""
EDGE_S = 5.0
"""A client could be drawn by a round if it came so long before it and stayed until its end."""
NEW_S = 20.0
"""A client is new for so long after it came."""
FIRST = 10
LEAST_P = 1e-6
SETTLE_S = 5.0
PATIENCE_S = 900.0
SPARE = {"files": 16, "threads": 16, "tasks": 4, "objects": 5000, "of a kind": 120}
"""What may be left over after all clients have gone, whatever their number."""
CACHED = ("fedloom.protocol.trust.identity.Peer",)
"""Objects that stay, in bounded number."""
JUDGED_MINUTES = 20.0
"""Shorter soaks do not tell whether something would double in a day."""
GROWN = {"memory_mib": 16, "files": 16, "threads": 4, "share": 0.05}
"""What may grow while rounds are committed, after the warm-up."""
IN_USE_MIB, IN_USE_SHARE = 4, 0.03
"""What may be allocated in addition meanwhile: two samples differ by 1 % without any growth."""
DRIVER = "fedloom.server.rounds.round_driver.RoundDriver"
OF_CLIENTS = (
    "fedloom.server.fleet.sessions.Session",
    "fedloom.server.fleet.sessions.Call",
    DRIVER,
    "fedloom.server.rounds.member_records.Record",
)
"""Objects of connected clients, and of open rounds."""
FEW_ROWS = 20
SLACK_KIB = 64
MODEL_ERROR = 1e-4


# ---- what is measured ----------------------------------------------------------------------------


class Watch:
    """Samples of a server."""

    def __init__(self, deployment):
        self._deployment = deployment
        self.ledger = f"file:{deployment.state / 'ledger.sqlite'}?mode=ro"
        self.samples = []

    def take(self):
        """Add a sample; returns it."""
        pid = self._deployment.pid
        with closing(sqlite3.connect(self.ledger, uri=True)) as ledger:
            rounds = ledger.execute("SELECT count(*) FROM rounds WHERE state = 'committed'")
            resident = memory_bytes(pid)[0]
            sample = {
                "at": time.time(),
                "memory_mib": (resident + _untouched_bytes(pid)) / 2**20,
                "resident_mib": resident / 2**20,
                "files": _entries(f"/proc/{pid}/fd"),
                "threads": _entries(f"/proc/{pid}/task"),
                "cpu_s": cpu_s(pid),
                "rounds": rounds.fetchone()[0],
                "ledger_kib": _used_bytes(ledger) / 1024,
                "wal_kib": _size(self._deployment.state / "ledger.sqlite-wal") / 1024,
                "rows": _rows(ledger),
            }
        sample["online"] = Control(self._deployment.state).get("server")["clients_online"]
        self.samples.append(sample)
        return sample

    def during(self, seconds, every_s):
        """Take samples for some time; returns them."""
        first = len(self.samples)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.take()
            time.sleep(max(0.0, min(every_s, end - time.monotonic())))
        self.take()
        return self.samples[first:]

    def until_all_left(self):
        """Wait until the server has noticed that nobody attends, and has cleared up."""
        deadline = time.monotonic() + PATIENCE_S
        while self.take()["online"]:
            if time.monotonic() > deadline:
                raise RuntimeError("the server keeps clients that have gone")
            time.sleep(1.0)
        time.sleep(SETTLE_S)

    def tables_kib(self):
        """Size of every table with its indices; those of rounds are one."""
        with closing(sqlite3.connect(self.ledger, uri=True)) as ledger:
            query = (
                "SELECT tbl_name, sum(pgsize) FROM dbstat JOIN sqlite_master USING (name) "
                "WHERE aggregate = TRUE GROUP BY tbl_name"
            )
            return {name: size / 1024 for name, size in ledger.execute(query)}

    def objects(self):
        """What the server's garbage collector tracks."""
        path = self._deployment.events_file
        path.unlink(missing_ok=True)
        os.kill(self._deployment.pid, signal.SIGUSR1)
        deadline = time.monotonic() + 60.0
        while not path.exists():
            if time.monotonic() > deadline:
                raise RuntimeError("the server does not count its objects")
            time.sleep(0.05)
        return json.loads(path.read_text())


def _used_bytes(ledger):
    pages, free, size = (
        ledger.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _rows(ledger):
    """Rows of the tables that hold no records of rounds."""
    tables = [
        name for (name,) in ledger.execute("SELECT name FROM sqlite_master WHERE type='table'")
    ]
    return {
        name: ledger.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
        for name in tables
        if name not in OF_ROUNDS and not name.startswith("sqlite_")
    }


def _untouched_bytes(pid):
    """Bytes of the heap that malloc has and nobody has written to.

    gRPC's buffers are large and mostly unwritten. When they are freed, small objects take their
    place, and the resident memory grows although nothing more is held: up to this much.
    """
    lines = iter(Path(f"/proc/{pid}/smaps").read_text().splitlines())
    heap = next((line for line in lines if line.endswith("[heap]")), None)
    if heap is None:
        return 0
    found = dict(line.split(":", 1) for line in itertools.islice(lines, 8))
    return 1024 * (int(found["Size"].split()[0]) - int(found["Rss"].split()[0]))


def _entries(path):
    return sum(1 for _ in Path(path).iterdir())


def _size(path):
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


# ---- what happens --------------------------------------------------------------------------------


class Fleet:
    """The processes of the clients."""

    def __init__(self, configs, num_processes, work):
        self._pipes, self._processes = [], []
        for number in range(num_processes):
            here, there = SPAWN.Pipe()
            mine = replace(work, seed=work.seed + number)
            arguments = (configs[number::num_processes], mine, there)
            process = SPAWN.Process(target=hold, args=arguments, daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)
        for pipe in self._pipes:
            _answer(pipe)

    def churn(self):
        for pipe in self._pipes:
            pipe.send("churn")

    def found(self, directory):
        """The stays of all clients until now, and what happened how often."""
        stays, tally = [], {}
        for number, pipe in enumerate(self._pipes):
            pipe.send(str(directory / f"found-{number}"))
        for pipe in self._pipes:
            found = json.loads(Path(_answer(pipe)).read_text())
            stays += found["stays"]
            for what, times in found["tally"].items():
                tally[what] = tally.get(what, 0) + times
        return stays, tally

    def kill(self):
        """All clients are gone at once."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()


def _answer(pipe):
    if not pipe.poll(PATIENCE_S):
        raise RuntimeError("the clients do not answer")
    return pipe.recv()


def soak(arguments):
    """Returns what was found."""
    names = [f"c{i:05d}" for i in range(arguments.clients)]
    params = model(arguments.values)
    with tempfile.TemporaryDirectory() as temporary, deployed(names, "soak_server.py") as server:
        body = make_body(Path(temporary), params)
        work = Work(
            body=body,
            training_s=(arguments.training / 4, arguments.training),
            churn_per_s=arguments.churn / 60,
            away_s=arguments.away,
            silence_s=arguments.silence,
            seed=arguments.seed,
        )
        watch, configs = Watch(server), list(server.clients.values())
        _first_clients(server, watch, configs[:FIRST], params, work)
        before, objects_before = watch.take(), watch.objects()
        fleet = Fleet(configs, arguments.processes, work)
        try:
            server.wait_online(arguments.clients)
            connected_s = time.time() - before["at"]
            _say(f"{arguments.clients} clients attend after {connected_s:.0f} s")
            # A connection's buffers grow with its first update: that is no leak.
            server.until(server.submit(params, _spec(arguments.clients, 1, seed=0)))
            _say("each has sent an update")
            fleet.churn()
            run = server.submit(params, _spec(arguments.goal, 10**6, arguments.seed))
            busy = watch.during(60 * WARM_UP * arguments.minutes, arguments.every)
            objects = [watch.objects()]
            num_warm = len(busy)
            busy += watch.during(60 * (1 - WARM_UP) * arguments.minutes, arguments.every)
            objects.append(watch.objects())
            Control(server.state).post("runs", run, "stop")
            row = server.until(run, "stopped")
            _say(f"{row['rounds_committed']} rounds; now without rounds")
            time.sleep(SETTLE_S)
            tables = [watch.tables_kib()]
            quiet = watch.during(60 * arguments.quiet, arguments.every)
            tables.append(watch.tables_kib())
            stays, tally = fleet.found(Path(temporary))
        finally:
            fleet.kill()
        watch.until_all_left()
        after, objects_after = watch.take(), watch.objects()
        path = server.state / "models" / f"{row['model']}.safetensors"
        return {
            "connected_s": connected_s, "before": before, "busy": busy, "num_warm": num_warm,
            "quiet": quiet, "after": after, "tables_kib": tables,
            "objects": [objects_before, *objects, objects_after],
            "stays": stays, "tally": tally, "run": row, "rounds": _rounds(watch.ledger, run),
            "model_error": _model_error(params, read_params(path), row["rounds_committed"]),
            "log": server.log(),
        }  # fmt: skip


def _first_clients(server, watch, configs, params, work):
    """Some come, take part in rounds and go: what all share is there then."""
    fleet = Fleet(configs, 1, work)
    try:
        server.until(server.submit(params, _spec(len(configs), 5, seed=0)))
    finally:
        fleet.kill()
    watch.until_all_left()


def _spec(goal, rounds, seed):
    return {
        "name": "soak",
        "rounds": rounds,
        "seed": seed,
        "evaluate": False,
        "cohort": {"goal": goal, "quorum": goal, "deadline_s": 600.0, "patience_s": 2.0},
        "train": {"steps": 1, "learning_rate": 1.0},
    }


def _rounds(path, run):
    """Of every round of a run: state, begin, end, members and counted updates."""
    with closing(sqlite3.connect(path, uri=True)) as ledger:
        query = "SELECT number, state, opened_at, closed_at FROM rounds WHERE run = ? ORDER BY 1"
        rows = ledger.execute(query, (run,)).fetchall()
        members, counted = {}, {}
        for number, client in ledger.execute(
            "SELECT round, client FROM cohorts WHERE run = ?", (run,)
        ):
            members.setdefault(number, set()).add(client)
        query = "SELECT round, count(*) FROM updates WHERE run = ? GROUP BY round"
        counted = dict(ledger.execute(query, (run,)).fetchall())
    return [
        (state, begin, end, members.get(number, set()), counted.get(number, 0))
        for number, state, begin, end in rows
    ]


def _model_error(before, after, num_rounds):
    """How far the model is from the sum of all steps, relative to that; all clients send the same.

    Float32 steps that round to nearest lose at most half a unit in the last place each.
    """
    steps = {name: num_rounds * delta.astype(np.float64) for name, delta in deltas(before).items()}
    return max(
        float(np.abs(after[n] - (before[n] + steps[n])).max() / np.abs(steps[n]).max())
        for n in before
    )


def _say(text):
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


# ---- what is concluded ---------------------------------------------------------------------------


class Verdicts:
    """What must hold: (text, whether it does)."""

    def __init__(self):
        self.all = []

    def expect(self, holds, text):
        self.all.append((text, bool(holds)))

    @property
    def hold(self):
        return all(holds for _, holds in self.all)


def slopes(found, arguments, verdicts):
    """A row for each quantity of the server while rounds were committed."""
    busy = found["busy"]
    warm = busy[found["num_warm"] :]
    times = [each["at"] for each in warm]
    rows = []
    for name in ("memory_mib", "resident_mib", "files", "threads"):
        its = slope(times, [each[name] for each in warm])
        rows.append((name, its.level, its.per_day, its.low, its.high, "yes" if its.doubles else ""))
        if name == "resident_mib":  # it approaches `memory_mib` from below
            continue
        if arguments.minutes >= JUDGED_MINUTES:
            verdicts.expect(not its.doubles, f"{name} would not double in a day")
        grown = its.per_day * arguments.minutes / 1440
        verdicts.expect(
            grown <= max(GROWN[name], GROWN["share"] * its.level),
            f"{name} grows by less than {GROWN[name]} or {GROWN['share']:.0%} meanwhile",
        )
    pairs = list(itertools.pairwise(warm))
    shares = [100 * (b["cpu_s"] - a["cpu_s"]) / (b["at"] - a["at"]) for a, b in pairs]
    its = slope(times[1:], shares)
    rows.append(("CPU, % of a core", its.level, its.per_day, its.low, its.high, "not judged"))
    return rows


def ledger(found, verdicts):
    """The ledger's growth: with the rounds, and without rounds."""
    busy, quiet = found["busy"], found["quiet"]
    num_rounds = busy[-1]["rounds"] - busy[0]["rounds"]
    begin, end = found["tables_kib"]
    grown = {name: end[name] - begin.get(name, 0.0) for name in end}
    hours = (quiet[-1]["at"] - quiet[0]["at"]) / 3600
    refused = grown.pop("refusals", 0.0)
    rows = {
        name: quiet[-1]["rows"][name] - found["before"]["rows"][name] for name in quiet[-1]["rows"]
    }
    more_refusals = rows.pop("refusals")
    rows = {name: more for name, more in rows.items() if more}
    verdicts.expect(
        sum(rows.values()) <= FEW_ROWS,
        f"at most {FEW_ROWS} rows that are not of a round are new, however many clients churn",
    )
    verdicts.expect(sum(grown.values()) <= SLACK_KIB, "the ledger does not grow without rounds")
    return [
        ("KiB of a round", (busy[-1]["ledger_kib"] - busy[0]["ledger_kib"]) / max(1, num_rounds)),
        ("KiB in an hour without rounds, refusals apart", sum(grown.values()) / hours),
        (f"KiB in it for refusals, of which {KEPT_REFUSALS:,} are kept", refused / hours),
        ("rows that are not of a round, refusals apart", sum(rows.values())),
        *((f"rows of {name}", more) for name, more in rows.items() if more),
        ("rows of refusals", more_refusals),
        ("KiB in the end", quiet[-1]["ledger_kib"]),
        ("KiB of the write-ahead log, at most", max(each["wal_kib"] for each in busy + quiet)),
    ]


def left_over(found, verdicts):
    """What is there after all clients have gone and was not before the first one came."""
    before, after = found["before"], found["after"]
    first, warm, end, last = found["objects"]
    rows = [
        ("objects when warm, with all clients", warm["all"]),
        ("objects that rounds and churn have added then", end["all"] - warm["all"]),
    ]
    drivers = end["kinds"].get(DRIVER, 0)
    rows.append(("rounds in memory", drivers))
    verdicts.expect(drivers <= 2, "rounds that are over are not in memory while members idle")
    if warm["malloc_bytes"] is not None:
        held, more = (x / 2**20 for x in (warm["malloc_bytes"], end["malloc_bytes"]))
        rows += [("MiB in malloc when warm", held), ("MiB that were added then", more - held)]
        verdicts.expect(
            more - held <= max(IN_USE_MIB, IN_USE_SHARE * held),
            f"memory in use grows by less than {IN_USE_MIB} MiB or {IN_USE_SHARE:.0%}",
        )
    for name, now, then in (
        ("files", after["files"], before["files"]),
        ("threads", after["threads"], before["threads"]),
        ("tasks", last["tasks"], first["tasks"]),
    ):
        rows.append((f"{name} left over", now - then))
        verdicts.expect(now - then <= SPARE[name], f"at most {SPARE[name]} {name} are left over")
    for kind in OF_CLIENTS:
        name, count = kind.rpartition(".")[2], last["kinds"].get(kind, 0)
        rows.append((f"{name} left over", count))
        verdicts.expect(count <= 2, f"at most 2 of {name} are left over")  # in loop variables
    left = last["all"] - first["all"]
    rows.append(("objects left over", left))
    most = SPARE["objects"] + len(found["stays"]) / 2
    verdicts.expect(left <= most, f"at most {most:,.0f} objects are left over")
    kinds = {
        kind: count - first["kinds"].get(kind, 0)
        for kind, count in last["kinds"].items()
        if kind.startswith(("fedloom.", "grpc.", "_asyncio.", "asyncio.")) and kind not in CACHED
    }
    most = SPARE["of a kind"]
    verdicts.expect(
        max(kinds.values()) <= most, f"at most {most} of each kind of fedloom, grpc and asyncio are"
    )
    rows.append(("MiB left over", after["resident_mib"] - before["resident_mib"]))
    return rows


def turns(found, verdicts):
    """Whether uniform draws explain how often each client was asked."""
    rounds = [each for each in found["rounds"] if each[0] == "committed"]
    names = sorted({name for name, _, _ in found["stays"]})
    place = {name: i for i, name in enumerate(names)}
    who = np.array([place[name] for name, _, _ in found["stays"]])
    since = np.array([since for _, since, _ in found["stays"]])
    until = np.array([until for _, _, until in found["stays"]])
    there, asked, new = np.zeros((3, len(rounds), len(names)), np.bool_)
    for number, (_, begin, end, members, _) in enumerate(rounds):
        stay = (since <= begin - EDGE_S) & (until >= end)
        there[number, who[stay]] = True
        new[number, who[stay & (since > begin - NEW_S)]] = True
        asked[number, [place[name] for name in members]] = True
    its = fairness(there, asked, new)
    verdicts.expect(its.p >= LEAST_P, f"the counts are those of uniform draws (p >= {LEAST_P})")
    verdicts.expect(its.p_new >= LEAST_P, f"new clients get their share (p >= {LEAST_P})")
    return [
        ("asked: least, median, most", "{:.0f}, {:.0f}, {:.0f}".format(*its.asked)),
        ("expected: least, median, most", "{:.1f}, {:.1f}, {:.1f}".format(*its.expected)),
        ("farthest from it, standard deviations", its.standardised),
        ("p of the counts", its.p),
        ("p of the share of new clients", its.p_new),
    ]


def happened(found, arguments, verdicts):
    """Counts of what happened to clients and rounds."""
    tally, rounds = found["tally"], found["rounds"]
    committed = [each for each in rounds if each[0] == "committed"]
    seconds = [end - begin for _, begin, end, *_ in committed]
    others = [each[0] for each in rounds[:-1] if each[0] != "committed"]
    verdicts.expect(not others, "every round is committed, but for the one that the stop ends")
    verdicts.expect(
        all(each[4] >= arguments.goal for each in committed),  # more: they came while it closed
        f"every round counts {arguments.goal} updates",
    )
    verdicts.expect(found["model_error"] < MODEL_ERROR, "the model is the sum of all steps")
    ended = tally.get("streams that the server ended", 0)
    verdicts.expect(not ended, "the server ends no stream")
    verdicts.expect(
        all(tally.get(how) for how in ENDS) or not arguments.churn, "clients left in every way"
    )
    return [
        ("seconds until all attended", found["connected_s"]),
        ("rounds", len(committed)),
        ("seconds of a round: median", statistics.median(seconds)),
        ("seconds of a round: most", max(seconds)),
        ("relative error of the model", found["model_error"]),
        *((what, times) for what, times in sorted(tally.items())),
    ]


def plot(found, path):
    """Draw the samples, if matplotlib is there."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - not everywhere
    except ImportError:
        return
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    samples = [*found["busy"], *found["quiet"]]
    begin = samples[0]["at"]
    names = ("memory_mib", "resident_mib", "files", "threads", "cpu_s", "ledger_kib", "rounds")
    figure, axes = plt.subplots(len(names), sharex=True, figsize=(8, 10), layout="constrained")
    for name, axis in zip(names, axes, strict=True):
        axis.plot([(each["at"] - begin) / 60 for each in samples], [each[name] for each in samples])
        axis.set_ylabel(name)
        axis.axvline((found["quiet"][0]["at"] - begin) / 60, color="grey", linewidth=0.5)
    axes[-1].set_xlabel("minutes")
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=5000)
    parser.add_argument("--minutes", type=float, default=30.0, help="with rounds")
    parser.add_argument(
        "--quiet", type=float, default=3.0, help="minutes without rounds after them"
    )
    parser.add_argument("--churn", type=float, default=0.01, help="share that leaves in a minute")
    parser.add_argument("--away", type=float, default=20.0, help="seconds, at most, of one away")
    parser.add_argument("--silence", type=float, default=120.0, help="seconds to a reset, at most")
    parser.add_argument("--goal", type=int, default=100, help="updates of a round")
    parser.add_argument("--training", type=float, default=5.0, help="seconds, at most, of a member")
    parser.add_argument("--values", type=int, default=1000, help="float32 of the model")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between samples")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the report")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found, verdicts = soak(arguments), Verdicts()
    rows = slopes(found, arguments, verdicts)
    others = [
        *happened(found, arguments, verdicts), *ledger(found, verdicts),
        *left_over(found, verdicts), *turns(found, verdicts),
    ]  # fmt: skip
    columns = ("", "median", "growth a day", "low", "high", "doubles in a day")
    kept = {name: found[name] for name in ("before", "busy", "quiet", "after", "tables_kib")}
    settings = {**vars(arguments), "out": str(arguments.out)}
    more = {"others": others, "verdicts": verdicts.all, "settings": settings, **kept}
    report("soak", columns, rows, out=arguments.out, **more)
    plot(found, arguments.out / "soak.png")
    print()
    for name, value in others:
        print(f"{name:55} {value:.6g}" if isinstance(value, float) else f"{name:55} {value}")
    print()
    for text, holds in verdicts.all:
        print("holds " if holds else "FAILS ", text)
    first, warm, end, last = found["objects"]
    print("\nobjects added:", _growing(warm, end))
    print("objects left over:", _growing(first, last))
    if not verdicts.hold:
        print(found["log"])
        sys.exit(1)


def _growing(first, last):
    more = {name: n - first["kinds"].get(name, 0) for name, n in last["kinds"].items()}
    most = sorted(more.items(), key=lambda item: -item[1])[:12]
    return ", ".join(f"{name} {n}" for name, n in most if n > 20)


if __name__ == "__main__":
    main()
