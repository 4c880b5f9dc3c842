"""What a selection policy gains on unequal clients: rounds, and virtual minutes, to an accuracy.

    python benchmarks/selection_rounds.py [--seeds 8]

Sixty clients hold scikit-learn's digits by a Dirichlet split (alpha 0.3) and train on devices whose
speeds are lognormal (sigma 1); six are asked in each of 40 rounds. What counts is when 85 % of the
test examples are right. The table shows the mean ± sample standard deviation (n - 1) over the
seeds, each of which draws the split, the devices and the cohorts anew. It goes to the terminal and
the same figures to out/selection_rounds.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.simulation import config, simulate

OUT = Path(__file__).resolve().parent.parent / "out"
TARGET = 0.85
EXPERIMENT: dict[str, Any] = {
    "rounds": 40,
    "evaluate": False,
    "data": {"source": "digits", "clients": 60, "partition": {"name": "dirichlet", "alpha": 0.3}},
    "model": {"name": "mlp", "hidden": [32]},
    "cohort": {"goal": 6, "deadline_s": 60.0},
    "train": {"epochs": 3, "batch_size": 8, "learning_rate": 0.1},
    "engine": {"workers": 1},
    "devices": {
        "compute_examples_per_s": {"distribution": "lognormal", "median": 10, "sigma": 1.0},
        "download_mbit_s": 10,
        "upload_mbit_s": 5,
    },
}
POLICIES: dict[str, dict[str, Any]] = {
    "uniform": {},
    "size": {},
    "power_of_choice": {"choices": 3.0},
    "oort": {"exploration": 0.5},
    "deadline": {"share": 0.5},
    "sticky": {},
    "stratified": {"patterns": ["*[02468]"]},
}


def reached(policy: str, seed: int) -> tuple[float, float, float]:
    """Rounds and virtual minutes to the target, NaN where it was not; seconds of a mean round."""
    selection = {"name": policy, **POLICIES[policy]}
    experiment = config.load({**EXPERIMENT, "seed": seed, "selection": selection})
    records = simulate(experiment, show=False).records
    first = next((r for r in records if r.test.get("accuracy", 0.0) >= TARGET), None)
    seconds = records[-1].virtual_s / len(records)
    if first is None:
        return np.nan, np.nan, seconds
    return first.round, first.virtual_s / 60, seconds


def main() -> None:
    """Simulate, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = {}
    for policy in POLICIES:
        found = np.array([reached(policy, seed) for seed in range(arguments.seeds)])
        means, spread = found.mean(axis=0), found.std(axis=0, ddof=1)
        print(
            f"{policy:18}rounds {means[0]:5.1f} ± {spread[0]:3.1f}   "
            f"minutes {means[1]:5.1f} ± {spread[1]:3.1f}   {means[2]:4.0f} s a round",
            flush=True,
        )
        figures[policy] = {
            "rounds": found[:, 0].tolist(),
            "virtual_minutes": found[:, 1].tolist(),
            "round_s": found[:, 2].tolist(),
        }
    OUT.mkdir(exist_ok=True)
    report = {"target": TARGET, "seeds": arguments.seeds, "policies": figures}
    (OUT / "selection_rounds.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
