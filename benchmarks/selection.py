"""What drawing a cohort costs: 1,300 of 100,000 candidates, by every policy.

    python benchmarks/selection.py [--candidates 100000] [--cohort 1300] [--repeats 7]

Ten thousand of the candidates took part in each of five rounds, so that policies have something to
go by. `draw` is the pool that a round keeps of idle clients and its first draw; `replacement` the
first place that is filled afterwards, which draws for an eighth of those who wait, so that the next
thousands cost nothing. CPU milliseconds on one core, the best of the repeats. The table goes to the
terminal and the same figures to out/selection.json.
"""

import argparse
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from time import process_time

import numpy as np

from fedloom.server.engine import select_by
from fedloom.server.engine.selection import CandidatePool
from fedloom.simulation.data.population import numbered
from fedloom.strategies import SELECTIONS, registry
from fedloom.strategies.selection import History, Observation

OUT = Path(__file__).resolve().parent.parent / "out"
SETTINGS = {"stratified": {"label": "region"}}


def history_of(names: list[str]) -> History:
    """Five rounds of a tenth of the clients each."""
    history, draw = History(), np.random.default_rng(1)
    for number in range(1, 6):
        members = draw.choice(len(names), len(names) // 10, replace=False)
        facts = zip(
            members, draw.integers(1, 600, len(members)), draw.random(len(members)),
            draw.lognormal(3.0, 1.0, len(members)), strict=True,
        )  # fmt: skip
        seen = [
            Observation(
                client=names[place], num_examples=int(examples), loss=float(loss),
                seconds=float(seconds), label=float(place % 4),
            )
            for place, examples, loss, seconds in facts
        ]  # fmt: skip
        history.add(number, seen)
    return history


def best_ms(step: Callable[[], object], repeats: int) -> float:
    """CPU milliseconds of a step."""
    times = []
    for _ in range(repeats):
        begin = process_time()
        step()
        times.append(process_time() - begin)
    return 1e3 * min(times)


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--candidates", type=int, default=100_000)
    parser.add_argument("--cohort", type=int, default=1_300)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    names = numbered(arguments.candidates)
    idle, history = dict.fromkeys(names), history_of(names)
    figures = {}
    print(f"{arguments.cohort:,} of {arguments.candidates:,}, best of {arguments.repeats}")
    for name in SELECTIONS:
        policy = registry.selection(name, SETTINGS.get(name))
        select = select_by(policy, 1, 6, history, 60.0)

        def draw(select=select) -> CandidatePool:
            pool = CandidatePool(select, idle)
            pool.take(arguments.cohort)
            return pool

        first_ms = best_ms(draw, arguments.repeats)
        both_ms = best_ms(lambda draw=draw: draw().pop(), arguments.repeats)
        figures[name] = {
            "draw_ms": round(first_ms, 1),
            "replacement_ms": round(both_ms - first_ms, 1),
        }
        print(f"{name:18}draw {first_ms:7.1f} ms   replacement {both_ms - first_ms:7.1f} ms")
    OUT.mkdir(exist_ok=True)
    report = {
        "candidates": arguments.candidates, "cohort": arguments.cohort,
        "repeats": arguments.repeats, "python": platform.python_version(), "cpus": os.cpu_count(),
        "policies": figures,
    }  # fmt: skip
    (OUT / "selection.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
