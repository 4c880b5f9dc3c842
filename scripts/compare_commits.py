#!/usr/bin/env python3
"""Compares the models that two commits end with: the same descriptions, the same bytes.

    scripts/compare_commits.py 63eb2e5 HEAD
    scripts/compare_commits.py 63eb2e5 HEAD --only strategy --only example

Each commit is checked out into a temporary worktree and runs, by its own command line and with the
packages of this environment, the demo, the examples that need no download, three rounds with each
registered part of a run, and the maker of the protocol's vectors. Compared are SHA-256 of the model
files, and of the rounds' records without what a clock on the wall says. The exit status is 1 where
two differ, or where the new commit cannot run what the old one can.
"""

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from commits import REPOSITORY, checked_out, environment

sys.path.insert(0, str(REPOSITORY / "tests"))
from support import parts

EXAMPLES = ("digits", "devices", "asynchronous", "synthetic", "personal", "private", "trees")
MODEL = "model.safetensors"
OF_A_WALL_CLOCK = {"wall_s", "round_wall_s", "clients_per_s", "balance"}
"""Columns of metrics.csv that are never the same twice."""
NOTHING = "-"
IMPORTS = ("matplotlib.pyplot", "sklearn.datasets", "fedloom.simulation.api")
"""Imported once for all cases of a commit, which are forked."""

BASE: dict[str, Any] = {
    "rounds": 3,
    "seed": 7,
    "data": {
        "source": "digits",
        "clients": 6,
        "held_out": 0.2,
        "partition": {"name": "dirichlet", "alpha": 0.5, "min_size": 12},
    },
    "model": {"name": "mlp", "hidden": [8]},
    "cohort": {"goal": 5, "quorum": 5},
    "train": {"epochs": 1, "batch_size": 16, "learning_rate": 0.1},
    "engine": {"workers": 1},
}
DEVICES = {
    "compute_examples_per_s": {"distribution": "lognormal", "median": 40.0, "sigma": 0.7},
    "download_mbit_s": 10.0,
    "upload_mbit_s": 2.0,
    "jitter": 0.2,
}
OTHERS: dict[str, dict[str, Any]] = {
    "buffers": {
        "cohort": {"mode": "buffered", "goal": 2, "concurrency": 4},
        "devices": DEVICES,
        "rounds": 6,
    },
    "lost clients": {
        "cohort": {"goal": 3, "over_selection": 1.3, "deadline_s": 60.0},
        "devices": {**DEVICES, "drop_out": 0.2, "failure": 0.2},
    },
    "warm-up": {"strategy": {"name": "fedavg", "schedule": {"warmup_rounds": 2}}},
    "some tensors": {"train": {**BASE["train"], "only": ["3.*"]}},
    "narrow clients": {"train": {**BASE["train"], "widths": [1.0, 0.5]}},
    "local optimizer": {"optimizer": {"name": "adam"}},
    "an attack": {
        "attack": {"name": "sign_flip", "fraction": 0.2},
        "aggregation": {"name": "median"},
        "weighting": "uniform",
    },
    "resident kernel": {"engine": {"workers": 1, "kernel": "resident"}},
    "batched kernel": {"engine": {"workers": 1, "kernel": "batched"}},
}
"""What no registry lists."""


def descriptions() -> dict[str, dict[str, Any]]:
    """Experiments by case: three rounds with each registered part."""
    made = {}
    for (kind, name), tables in parts.parts().items():
        devices = {"devices": DEVICES} if kind == "selection" else {}
        made[f"{kind} {name}"] = {**BASE, **devices, **tables}
    return made | {f"others {name}": {**BASE, **tables} for name, tables in OTHERS.items()}


def toml(value: Any) -> str:
    """A value as TOML has it; tables are inline.

    >>> toml({"goal": 3, "names": ["a"], "replace": True})
    '{ goal = 3, names = ["a"], replace = true }'
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(n)} = {toml(v)}" for n, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def _key(name: str) -> str:
    return name if name.replace("_", "").isalnum() else json.dumps(name)


# ---- one commit, in a process of its own ---------------------------------------------------------


def run_cases(folder: Path, worktree: Path, only: list[str], *, quick: bool) -> None:
    """Run every case with the product that this process imports; digests go to a file."""
    api = [import_module(name) for name in IMPORTS][-1]
    assert worktree in Path(str(api.__file__)).parents
    found = {}

    def note(case: str, digests: Mapping[str, str]) -> None:
        found.update({f"{case}: {what}": digest for what, digest in digests.items()})
        (folder / "digests.json").write_text(json.dumps(found))
        print(f"  {case}", file=sys.stderr, flush=True)

    for case, description in descriptions().items():
        if _wanted(case, only):
            path = folder / f"{case}.toml"
            path.write_text("".join(f"{n} = {toml(v)}\n" for n, v in description.items()))
            note(case, _simulated(path, folder / case, ()))
    for name in EXAMPLES:
        case = f"example {name}"
        if _wanted(case, only):
            fewer = ("--set", "rounds=3") if quick and name != "trees" else ()
            described = folder / "examples" / f"{name}.toml"
            if not described.exists():  # in Python, whose imports are each commit's own
                described = worktree / "simulations" / "examples" / f"{name}.py"
            note(case, _simulated(described, folder / case, fewer))
    if _wanted("demo", only):
        fewer = ("--rounds", "3") if quick else ()
        _forked(["demo", "--out", str(folder / "demo"), *fewer], folder / "demo.log")
        note("demo", {"model": digest_of(folder / "demo" / MODEL)})
    if _wanted("vectors", only):
        note("vectors", vectors(worktree))


def _wanted(case: str, only: list[str]) -> bool:
    return not only or any(word in case for word in only)


def _simulated(described: Path, out: Path, more: tuple[str, ...]) -> dict[str, str]:
    words = ["simulate", str(described), "--out", str(out), "--quiet", *more]
    if described.suffix == ".toml":
        words += ["--workers", "1"]
    _forked(words, out.with_suffix(".log"))
    return {"model": digest_of(out / MODEL), "records": digest_of_records(out / "metrics.csv")}


def _forked(words: list[str], log: Path) -> None:
    """Run a command of the command line in a child, which has all imports already."""
    child = os.fork()
    if child == 0:
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            status = 1
            try:
                from fedloom.cli.main import main  # noqa: PLC0415

                sys.argv = ["fedloom", *words]
                main()
                status = 0
            except SystemExit as end:
                status = int(end.code or 0)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
    _, status = os.waitpid(child, 0)
    if status:
        print(f"  fedloom {' '.join(words)}: {log.read_text()[-400:]}", file=sys.stderr)


def vectors(worktree: Path) -> dict[str, str]:
    """Digests of the protocol's vectors, made anew."""
    files = sorted((worktree / "tests" / "protocol" / "vectors").glob("*.json"))
    for file in files:
        file.unlink()
    subprocess.run([sys.executable, "scripts/make_vectors.py"], cwd=worktree, check=False)
    return {file.name: digest_of(file) for file in files}


def digest_of(path: Path) -> str:
    """SHA-256 of a file; `NOTHING` where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else NOTHING


def digest_of_records(path: Path) -> str:
    """SHA-256 of a table of rounds, without the columns that a wall clock fills."""
    if not path.exists():
        return NOTHING
    with path.open(newline="") as file:
        rows = [
            {name: value for name, value in row.items() if name not in OF_A_WALL_CLOCK}
            for row in csv.DictReader(file)
        ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


# ---- two commits ---------------------------------------------------------------------------------


def digests(commit: str, folder: Path, examples: Path, arguments: argparse.Namespace) -> Any:
    """Digests by case of one commit."""
    folder.mkdir()
    (folder / "examples").symlink_to(examples)
    with checked_out(commit, folder / "worktree") as worktree:
        print(f"{commit}:", file=sys.stderr)
        words = [sys.executable, __file__, "--run-in", str(folder), *_passed_on(arguments)]
        subprocess.run(words, env=environment(worktree), check=True)
    return json.loads((folder / "digests.json").read_text())


def _passed_on(arguments: argparse.Namespace) -> list[str]:
    only = [word for each in arguments.only for word in ("--only", each)]
    return [*only, *(["--quick"] if arguments.quick else [])]


def table(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, int]:
    """The comparison in words, and how many cases differ."""
    rows = [("case", "old", "new", "same")]
    different = 0
    for case in old | new:
        a, b = old.get(case, NOTHING), new.get(case, NOTHING)
        same = a == b
        different += not same
        rows.append(
            (
                case,
                a[:16],
                b[:16],
                ("yes" if same else "NO") if a != NOTHING else "neither runs" if same else "new",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(f"{t:{w}}" for t, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join(lines), different


def main() -> int:
    """Compare two commits and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", nargs="?", metavar="OLD", help="a commit")
    parser.add_argument("new", nargs="?", metavar="NEW", default="HEAD", help="another; HEAD")
    parser.add_argument("--only", action="append", default=[], help="cases with this in the name")
    parser.add_argument("--quick", action="store_true", help="three rounds of examples and demo")
    parser.add_argument(
        "--kept", type=Path, help="file with OLD's digests; read where it is there, else written"
    )
    parser.add_argument("--run-in", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run_in is not None:
        worktree = (arguments.run_in / "worktree").resolve()
        run_cases(arguments.run_in, worktree, arguments.only, quick=arguments.quick)
        return 0
    if arguments.old is None:
        parser.error("Expected OLD, a commit to compare with.")
    with tempfile.TemporaryDirectory(prefix="fedloom-compare-") as name:
        folder = Path(name).resolve()
        with checked_out(arguments.old, folder / "first") as first:
            examples = first / "simulations" / "examples"
            if arguments.kept is not None and arguments.kept.exists():
                old = json.loads(arguments.kept.read_text())
            else:
                old = digests(arguments.old, folder / "old", examples, arguments)
            if arguments.kept is not None:
                arguments.kept.write_text(json.dumps(old))
            new = digests(arguments.new, folder / "new", examples, arguments)
    text, different = table(old, new)
    print(text)
    print(f"{len(old | new)} digests compared, {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
