"""Files that some examples expect on their nodes."""

import sqlite3
import subprocess
import sys

import numpy as np


def own_script(name, *option):
    """The example's own script, which writes one data set for each node into `datasets/`."""

    def make(example, environment, folder, nodes):
        subprocess.run(
            [sys.executable, str(example / name), *option, str(nodes)],
            cwd=folder, env=environment, check=True, capture_output=True,
        )  # fmt: skip
        made = sorted((folder / "datasets").iterdir())
        return [{"dataset-path": str(path)} for path in made]

    return make


def databases(example, environment, folder, nodes):  # noqa: ARG001 - one interface for all
    """A SQLite file of patients for each node."""
    rng = np.random.default_rng(3)
    names = ["age", "bmi", "systolic_bp", "diastolic_bp", "ldl_cholesterol", "hba1c"]
    columns = ", ".join(f"{name} REAL" for name in names)
    for node in range(nodes):
        path = folder / f"{node}.sqlite"
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as connection:
            connection.execute(f"CREATE TABLE person_measurements ({columns})")
            rows = rng.normal([50, 26, 125, 80, 120, 6], [15, 4, 15, 10, 30, 1], (100 + node, 6))
            connection.executemany(
                "INSERT INTO person_measurements VALUES (?, ?, ?, ?, ?, ?)", rows.tolist()
            )
    return [{"db-url": f"sqlite:///{folder / f'{node}.sqlite'}"} for node in range(nodes)]


def pictures(example, environment, folder, nodes):  # noqa: ARG001
    """The folder MedNIST in the working directory: small grey pictures of six kinds."""
    from PIL import Image  # noqa: PLC0415 - where this file is imported, it may be missing

    rng = np.random.default_rng(5)
    for kind in range(6):
        place = folder / "MedNIST" / f"kind-{kind}"
        place.mkdir(parents=True, exist_ok=True)
        for number in range(20):
            pixels = rng.integers(0, 60, (64, 64)) + 30 * kind
            Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.jpeg")
    return [{} for _ in range(nodes)]
