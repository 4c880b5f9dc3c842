"""Two hundred agents on one machine: rounds while a tenth of them is killed, and a storm after it.

Every agent is a process of its own with a certificate of its own; its training is a random step.
While the rounds go on, a seeded tenth of the agents is killed by SIGKILL in each and started again.
Then the server is away for a while, and from its log it is read when each agent was back, beside
what full jitter says (M. Brooker, "Exponential Backoff And Jitter", 2015): the same waits drawn
for as many agents, without a machine between. The model must have the bits that the algebra makes
of the ledger. Prints tables and writes out/fleet.json.
"""

import argparse
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from deployment import cpu_s, memory_bytes, report

from fedloom.client.agent.agent import FIRST_BACKOFF_S

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.stage import HERE, Stage, model, wait

PATIENCE_S = 900.0
RECONNECT_S = 60.0
STARTING = 8
"""Agents that start at a time: a start is half a second of a core."""
AWAY_S = (1.0, 10.0, 30.0)
ATTENDS = re.compile(r"^(\d+\.\d+) (c\d+) attends", re.MULTILINE)


def start_all(stage, names):
    """Start agents a few at a time; returns how long that took, seconds."""
    begun = time.monotonic()
    for i in range(0, len(names), STARTING):
        some = names[i : i + STARTING]
        for name in some:
            stage.start(name, script=HERE / "fault_client.py")
        wait(lambda some=some: attending(stage).issuperset(some), f"{some} to attend", PATIENCE_S)
    return time.monotonic() - begun


def attending(stage, since=0.0):
    """Who has attended since a moment, by the server's log."""
    text = (stage.directory / "server.log").read_text(errors="replace")
    return {name for at, name in ATTENDS.findall(text) if float(at) >= since}


def rounds_with_churn(stage, args, rng):
    """A run in which a share of the agents is killed in each round; figures of it."""
    names = list(stage.devices)
    initial = model(args.model_bytes, seed=1)
    cohort = {
        "goal": round(0.75 * len(names)),
        "quorum": round(0.5 * len(names)),
        "over_selection": 1.2,
        "deadline_s": 300.0,
        "patience_s": 20.0,
    }
    settings = {"rounds": args.rounds, "cohort": cohort}
    begun, cpu = time.monotonic(), cpu_s(stage.server.pid)
    run = stage.submit(initial, **settings)
    kills, seen = 0, 0
    while (row := stage.row(run))["state"] == "running":
        number = ((row.get("live") or {}).get("round") or {}).get("number", seen)
        if number > seen:
            seen = number
            killed = rng.sample(names, round(args.churn * len(names)))
            for name in killed:
                stage.end(name, signal.SIGKILL)
                time.sleep(rng.uniform(0.0, 0.2))
                stage.start(name, script=HERE / "fault_client.py")
            kills += len(killed)
        time.sleep(0.2)
    assert row["state"] == "finished", row
    took_s = time.monotonic() - begun
    counted = stage.judge(run, initial, **settings)
    return {
        "rounds": len(counted),
        "kills": kills,
        "seconds a round": took_s / len(counted),
        "updates counted": sum(map(len, counted)),
        "fewest in a round": min(map(len, counted)),
        "server CPU seconds a round": (cpu_s(stage.server.pid) - cpu) / len(counted),
    }


def storm(stage, away_s):
    """Let the server be away; when each agent was back, seconds after it was."""
    stage.stop_server()
    gone = time.time()
    time.sleep(max(0.0, away_s))
    stage.start_server()
    back = time.time()
    names = set(stage.devices)
    wait(lambda: attending(stage, gone) == names, "all agents to come back", PATIENCE_S)
    text = (stage.directory / "server.log").read_text(errors="replace")
    first = {}
    for at, name in ATTENDS.findall(text):
        if float(at) >= gone:
            first.setdefault(name, float(at) - back)
    return sorted(first.values()), back - gone


def expected(num, away_s, rng):
    """The same by full jitter alone: attempts that fail at once, and the last that does not."""
    times = []
    for _ in range(num):
        at, attempt = 0.0, 0
        while at < away_s:
            at += rng.uniform(0, min(RECONNECT_S, FIRST_BACKOFF_S * 2**attempt))
            attempt += 1
        times.append(at - away_s)
    return sorted(times)


def quantiles(times):
    """Median, nine tenths, last, and the most in one second."""
    most = max(sum(t <= other < t + 1 for other in times) for t in times)
    return [statistics.median(times), times[int(0.9 * len(times))], times[-1], float(most)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--churn", type=float, default=0.1, help="share killed in each round")
    parser.add_argument("--model-bytes", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    names = [f"c{i:03d}" for i in range(args.agents)]
    with tempfile.TemporaryDirectory(prefix="fedloom-") as temporary:
        stage = Stage(Path(temporary) / "stage", names)
        for name in names:
            stage.point(name, stage.config.fleet, reconnect_s=RECONNECT_S)
        with stage:
            started_s = start_all(stage, names)
            pids = [stage.devices[name].process.pid for name in names]
            resident = [memory_bytes(pid)[0] / 2**20 for pid in pids]
            cpu = [cpu_s(pid) for pid in pids]
            figures = {
                "agents": len(names),
                "started in, seconds": started_s,
                "CPU seconds to start one": statistics.median(cpu),
                "resident MiB of one": statistics.median(resident),
                **rounds_with_churn(stage, args, rng),
            }
            rows = []
            for away_s in AWAY_S:
                times, really_s = storm(stage, away_s)
                jitter = expected(100 * len(names), really_s, rng)
                jitter_most = quantiles(expected(len(names), really_s, rng))[3]
                rows.append([f"away {really_s:.1f} s, measured", *quantiles(times)])
                rows.append(
                    [f"away {really_s:.1f} s, full jitter", *quantiles(jitter)[:3], jitter_most]
                )
                time.sleep(5.0)
    for name, value in figures.items():
        print(f"{name}: {value:.4g}")
    columns = ["storm", "median s", "90 % s", "last s", "most in 1 s"]
    report("fleet", columns, rows, fleet=figures)


if __name__ == "__main__":
    main()
