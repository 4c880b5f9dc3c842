"""How good the demo's settings are: federated, centralised and alone, over several seeds.

    python benchmarks/demo_settings.py --seeds 8
    python benchmarks/demo_settings.py --mnist FOLDER --seeds 1

Rounds are simulated in this process; the table goes to stdout, or JSON with --json.
"""

import argparse
import dataclasses
import json
import time
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from fedloom.simulation.api import simulate
from fedloom.simulation.demo import baselines, data
from fedloom.simulation.demo.model import build
from fedloom.simulation.demo.settings import DIGITS, MNIST, DemoSettings
from fedloom.simulation.experiment import EngineSettings, Experiment, run_spec


def measure(settings: DemoSettings, folder: Path | None) -> dict[str, float]:
    """One seed's accuracies and times."""
    population = data.population(settings, folder)
    experiment = Experiment(
        population=population,
        model=partial(build, *data.shape_of(population), seed=settings.seed),
        spec=run_spec({**settings.run, "evaluate": False}),
        engine=EngineSettings(workers=1, kernel="resident"),
    )
    start = time.perf_counter()
    records = simulate(experiment, show=False).records
    federated = [record.test["accuracy"] for record in records]
    middle = time.perf_counter()
    found = baselines.measure(population, settings, num_processes=1)
    alone = list(found.alone.values())
    return {
        "seed": settings.seed,
        "federated": federated[-1],
        "centralised": found.centralised[-1],
        "difference": found.centralised[-1] - federated[-1],
        "worst_of_last_5": min(federated[-5:]),
        "alone_best": max(alone),
        "alone_median": float(np.median(alone)),
        "alone_worst": min(alone),
        "smallest_shard": int(population.sizes.min()),
        "largest_shard": int(population.sizes.max()),
        "federated_s": middle - start,
        "baselines_s": time.perf_counter() - middle,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", type=Path, help="folder with the IDX files; default: digits")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    for name, kind in (("rounds", int), ("epochs", int), ("batch-size", int)):
        parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--learning-rate", type=float)
    options = vars(parser.parse_args())
    folder, seeds, as_json = (options.pop(name) for name in ("mnist", "seeds", "json"))
    chosen = {name: value for name, value in options.items() if value is not None}
    base = dataclasses.replace(MNIST if folder else DIGITS, **chosen)
    rows = [measure(dataclasses.replace(base, seed=seed), folder) for seed in range(seeds)]
    if as_json:
        print(json.dumps({"settings": dataclasses.asdict(base), "rows": rows}, indent=2))
        return
    table = Table(title=str(base))
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{v:.4g}" for v in row.values()))
    means = (float(np.mean([row[name] for row in rows])) for name in rows[0] if name != "seed")
    table.add_section()
    table.add_row("mean", *(f"{mean:.4g}" for mean in means))
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
