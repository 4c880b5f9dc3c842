"""Rounds of an honest fleet beside hostile peers, of every kind in hostile_kinds.py.

The honest fleet is real agents in processes of their own, on any core. An attack is one process on
the last core, so a round also has less of the machine: `a_busy_core` is a process there that only
counts. Attacks are compared with the rounds beside it and with all quiet ones, before the first and
after each attack, since single series of these differ by a third on a shared machine. For the same
reason a kind whose p99 is beyond its limit gets more rounds, beside the attack and after it, and
all of them count: the slowest of thirty says little about the 99th percentile. A measurement during
which the host took more than a twentieth of the machine is repeated, whatever it found.

A round is the time from its opening to the next one's. Prints a table of the rounds, the server's
processor, memory, open files and ledger, the share of the machine that its host took away, and what
does not hold; writes out/hostile.json.

What must hold for each kind: every round commits with the whole honest fleet; p99 is at most 1.1
times, or 50 ms more than, the p99 without an attack; memory grows by less than 100 MB; files,
memory and rounds are as before five seconds after the end.
"""

import argparse
import asyncio
import http.client
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from deployment import cpu_s, deployed, free_port, memory_bytes, model, report
from hostile_kinds import KINDS, Attackers
from rounds import attend as run_agent
from upload import make_body

from fedloom.cli.connection.api_client import Control

SPAWN = multiprocessing.get_context("spawn")
WARM_UP = 3
"""Rounds before the first measurement: they make the spool's files."""
BUSY = "a_busy_core"
AFTER_S = 5.0
"""Time after an attack in which everything must be as before."""
VIEWERS = 2
FACTOR, MORE_S = 1.1, 0.05
MORE_MIB = 100e6 / 2**20
MORE_FILES = 8
STOLEN = 0.05
"""Share of the machine that its host may take during a measurement."""


def attacking(name, given, pipe):
    """The process of an attack, on the last core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if name == BUSY:
        pipe.send("settled")
        while True:
            pass
    asyncio.run(KINDS[name].attack(Attackers(**given, settled=lambda: pipe.send("settled"))))


@contextmanager
def attack_of(name, given):
    """An attack under way; yields its process id."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=attacking, args=(name, given, there), daemon=True)
    process.start()
    try:
        if not here.poll(30):
            raise RuntimeError(f"{name} does not begin")
        here.recv()
        time.sleep(1.0)  # it takes its places
        yield process.pid
    finally:
        process.kill()
        process.join()


@contextmanager
def honest_fleet(configs):
    """A process for every honest agent."""
    processes = [SPAWN.Process(target=run_agent, args=(config,), daemon=True) for config in configs]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def log_in(deployment):
    """The cookie of a viewer's session."""
    link = Control(deployment.state).post("login-links", body={"scope": "viewer"})["url"]
    address, _, path = link.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(address)
    connection.request("GET", f"/{path}")
    cookie = connection.getresponse().getheader("set-cookie").partition(";")[0]
    connection.close()
    return cookie


def stolen_s():
    """Processor seconds that this machine's host took away, of all cores."""
    return int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")


def spending(deployment):
    """What the server's process has and has used."""
    ledger = deployment.state.glob("ledger.sqlite*")
    return {
        "cpu": cpu_s(deployment.pid),
        "stolen": stolen_s(),
        "mib": memory_bytes(deployment.pid)[0] / 2**20,
        "files": len(list(Path(f"/proc/{deployment.pid}/fd").iterdir())),
        "ledger_kib": sum(p.stat().st_size for p in ledger) / 1024,
    }


def measure_alone(deployment, params, arguments, rounds, **attack):
    """Measure until the host leaves the machine alone; the last attempt counts in any case."""
    for _ in range(1 + arguments.repeats):
        found = measure(deployment, params, arguments, rounds, **attack)
        if found["stolen"] <= STOLEN:
            break
        print(f"repeated: the host took {found['stolen']:.0%} of the machine", file=sys.stderr)
    return found


def measure(deployment, params, arguments, rounds, *, kind=None, attack=None):
    """Seconds of each round of a run, and what the server spent meanwhile."""
    honest = arguments.honest
    everyone = honest + (kind.clients if kind else 0)  # all that may attend are asked
    online = everyone if kind and kind.members else honest
    deployment.wait_online(online)
    spec = {
        "name": "hostile",
        "rounds": rounds,
        "evaluate": False,
        "cohort": {
            "goal": honest,
            "quorum": honest,  # a round that loses an honest update is abandoned
            "over_selection": everyone / honest,
            "candidates": online,
            "patience_s": arguments.patience_s,
            "deadline_s": arguments.deadline_s,
        },
        "train": {"steps": 1, "learning_rate": 1.0},
    }
    before, begun = spending(deployment), time.monotonic()
    attack_cpu = cpu_s(attack) if attack else 0.0
    run = deployment.submit(params, spec)
    most = before["mib"]
    while deployment.status(run)["state"] == "running":
        most = max(most, memory_bytes(deployment.pid)[0] / 2**20)
        if time.monotonic() - begun > arguments.limit_s:
            Control(deployment.state).post("runs", run, "stop")
            break
        time.sleep(0.2)
    after, took = spending(deployment), time.monotonic() - begun
    rows = sorted(deployment.rounds(run), key=lambda row: row.opened_at)
    seconds = [b.opened_at - a.opened_at for a, b in pairwise(rows)]
    return {
        "seconds": sorted(seconds + [r.closed_at - r.opened_at for r in rows[-1:]]),
        "lost": rounds - len(rows),
        "server_cpu": (after["cpu"] - before["cpu"]) / took,
        "attack_cpu": (cpu_s(attack) - attack_cpu) / took if attack else 0.0,
        "stolen": (after["stolen"] - before["stolen"]) / took / os.cpu_count(),
        "mib": most,
        "files": after["files"],
        "ledger_kib": after["ledger_kib"] - before["ledger_kib"],
        "s": took,
    }


def p99(seconds):
    """The 99th percentile, by nearest rank: the slowest of less than a hundred."""
    return seconds[math.ceil(0.99 * len(seconds)) - 1] if seconds else float("inf")


def limit_for(kind, found, kinds):
    """The longest p99 of the rounds beside an attack, and after it."""
    # Not by the rounds after it: an attack whose effects last must not raise its own limit.
    left_out = {*kinds, f"after {kind}"}
    calm = sorted(t for name in found.keys() - left_out for t in found[name]["seconds"])
    return max(FACTOR * p99(calm), p99(calm) + MORE_S)


def add(found, label, measured):
    """Add a measurement to those of its kind: all rounds, and what the server has at its end."""
    if label in found:
        first = found[label]
        measured |= {
            "seconds": sorted(first["seconds"] + measured["seconds"]),
            "lost": first["lost"] + measured["lost"],
            "mib": max(first["mib"], measured["mib"]),
        }
    found[label] = measured


def verdicts(found, kinds):
    """What does not hold, in words."""
    failed = []

    def check(label, before, limit):
        each = found[label]
        if each["lost"]:
            failed.append(f"{label}: {each['lost']} rounds lost")
        if p99(each["seconds"]) > limit:
            failed.append(f"{label}: p99 {p99(each['seconds']):.3f} s, at most {limit:.3f} s")
        if each["mib"] > before["mib"] + MORE_MIB:
            failed.append(f"{label}: memory {each['mib']:.0f} MiB, {before['mib']:.0f} before")

    before = found["quiet"]
    for name in kinds:
        after = found[f"after {name}"]
        limit = limit_for(name, found, kinds)
        check(name, before, limit)
        check(f"after {name}", before, limit)
        if after["files"] > before["files"] + MORE_FILES:
            failed.append(f"after {name}: {after['files']} files, {before['files']} before")
        before = after
    return failed


def line(label, found):
    """A row of the table."""
    seconds = found["seconds"] or [float("inf")]
    return (
        label, len(found["seconds"]), found["lost"], statistics.median(seconds), p99(seconds),
        found["server_cpu"], found["attack_cpu"], found["stolen"], found["mib"], found["files"],
        found["ledger_kib"],
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=list(KINDS))
    parser.add_argument("--honest", type=int, default=20, help="agents")
    parser.add_argument("--values", type=int, default=1_000_000, help="float32 of the model")
    parser.add_argument("--rounds", type=int, default=30, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=2, help="of a measurement under steal")
    parser.add_argument("--more", type=int, default=90, help="rounds of a kind beyond its limit")
    parser.add_argument("--patience-s", type=float, default=30.0)
    parser.add_argument("--deadline-s", type=float, default=600.0)
    parser.add_argument("--limit-s", type=float, default=900.0, help="of one measurement")
    arguments = parser.parse_args()
    names = [f"honest{i:02d}" for i in range(arguments.honest)]
    hostile = [f"hostile{i:02d}" for i in range(max(KINDS[k].clients for k in arguments.kinds))]
    params, found = model(arguments.values), {}
    console = f"127.0.0.1:{free_port()}"
    with (
        tempfile.TemporaryDirectory() as temporary,
        deployed([*names, *hostile], console=console) as deployment,
        honest_fleet([deployment.clients[name] for name in names]),
    ):
        given = {
            "server": deployment.config.fleet,
            "enrolment": deployment.config.enrolment,
            "console": console,
            "cookies": tuple(log_in(deployment) for _ in range(VIEWERS)),
            "header": make_body(Path(temporary), params).header,
        }
        measure(deployment, params, arguments, WARM_UP)
        found["quiet"] = measure_alone(deployment, params, arguments, arguments.rounds)
        for name in (BUSY, *arguments.kinds):
            known = KINDS.get(name)
            chosen = hostile[: known.clients] if known else ()
            given["configs"] = {each: deployment.clients[each] for each in chosen}
            given["digest"] = next((deployment.state / "models").glob("*.safetensors")).stem
            for rounds in (arguments.rounds, arguments.more):
                with attack_of(name, given) as attack:
                    beside = measure_alone(
                        deployment, params, arguments, rounds, kind=known, attack=attack
                    )
                add(found, name, beside)
                time.sleep(AFTER_S)
                add(found, f"after {name}", measure_alone(deployment, params, arguments, rounds))
                print(*line(name, found[name])[:8], file=sys.stderr)
                slowest = max(p99(found[each]["seconds"]) for each in (name, f"after {name}"))
                if known is None or slowest <= limit_for(name, found, arguments.kinds):
                    break
    failed = verdicts(found, arguments.kinds)
    columns = (
        "", "rounds", "lost", "p50 s", "p99 s", "server CPU", "attack CPU", "stolen",
        "MiB", "files", "ledger KiB",
    )  # fmt: skip
    rows = [line(label, each) for label, each in found.items()]
    report("hostile", columns, rows, found=found, failed=failed)
    print(*(failed or ["Everything holds."]), sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
