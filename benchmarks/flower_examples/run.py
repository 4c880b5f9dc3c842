"""Runs Flower's example apps under Flower's own loop and under this server, and compares them.

    make flower-examples REPO=folder

The folder holds Flower's repository; nothing of it is copied. Data is replaced (`hooks/`), seeds
are fixed, and each app runs in processes of its own: with `loop.py`, then with a server and agents
of this project. The table has the largest difference between all numbers of both.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from hashlib import sha256
from pathlib import Path

import table
from compare import compare, errors_of
from deployed import START_S, Failed, deployed, last

from examples import EXAMPLES, REFUSED, Example

HERE = Path(__file__).parent
LIMIT_S = 420


def node_id(name):
    """As an agent of this name has in a Flower app."""
    return int.from_bytes(sha256(name.encode()).digest()[:8], "little") >> 1 or 1


def names_of(number):
    return [f"node-{place}" for place in range(number)]


def flat(config, prefix=""):
    found = {}
    for key, value in config.items():
        found |= (
            flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return found


def components(folder):
    """The app's table in its pyproject.toml; None if it names no ServerApp and ClientApp."""
    path = folder / "pyproject.toml"
    project = tomllib.loads(path.read_text()) if path.is_file() else {}
    app = project.get("tool", {}).get("flwr", {}).get("app", {})
    return app if {"serverapp", "clientapp"} <= set(app.get("components", {})) else None


class Run:
    """One example, its folders and settings."""

    def __init__(self, repository, name, out):
        self.name, self.example = name, EXAMPLES.get(name, Example())
        self.code = repository / "examples" / name / self.example.folder
        self.app = components(self.code)
        self.out = out / name
        self.data = self.out / "data"

    def refusal(self):
        if self.app is None:
            return "Has no ServerApp and ClientApp in Python"
        return REFUSED.get(self.name)

    def settings(self, record):
        return {
            "node_ids": [node_id(name) for name in names_of(self.example.nodes)],
            "rows": self.example.rows,
            "compare_replies": self.example.compare_replies,
            "record": str(record),
        }

    def environment(self, record):
        return {
            **os.environ,
            "FLOWER_EXAMPLE": json.dumps(self.settings(record)),
            "PYTHONPATH": os.pathsep.join(
                [str(HERE / "hooks"), str(self.code), os.environ.get("PYTHONPATH", "")]
            ),
            "PYTHONDONTWRITEBYTECODE": "1",  # nothing is written into the repository
            "PYTHONHASHSEED": "0",
            "HF_HOME": str(self.out / "hf"),
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "WANDB_MODE": "disabled",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_HOME": str(self.out / "flwr"),
        }

    def node_configs(self):
        """Make the data of the nodes, and return their configs."""
        self.data.mkdir(parents=True, exist_ok=True)
        number = self.example.nodes
        more = [{}] * number
        if self.example.prepare:
            more = self.example.prepare(
                self.code, self.environment(self.out / "none.npz"), self.data, number
            )
        return [{"partition-id": i, "num-partitions": number, **more[i]} for i in range(number)]

    def work(self, name):
        """A working directory, with the data in it."""
        folder = self.out / name
        folder.mkdir(parents=True, exist_ok=True)
        for made in self.data.iterdir():
            link = folder / made.name
            if not link.exists():
                link.symlink_to(made.resolve())
        return folder

    @property
    def run_config(self):
        return flat(self.app.get("config", {})) | self.example.config

    def flower(self, name="flower"):
        """Run under Flower's loop; returns the record."""
        record = self.out / f"{name}.npz"
        if record.exists():  # kept by --keep-flower
            return checked(record)
        settings = {
            "folder": str(self.code),
            **self.app["components"],
            "run_config": self.run_config,
            "node_ids": self.settings(record)["node_ids"],
            "node_configs": self.node_configs(),
        }
        log = self.out / f"{name}.log"
        with log.open("w") as output:
            code = subprocess.run(
                [sys.executable, str(HERE / "loop.py")], input=json.dumps(settings), text=True,
                cwd=self.work(name), env=self.environment(record), stdout=output, stderr=output,
                timeout=LIMIT_S, check=False,
            ).returncode  # fmt: skip
        if code or not record.exists():
            raise Failed(f"exit {code}: {last(log)}")
        return checked(record)

    def fedloom(self):
        """Run on a server of this project with agents; returns the record."""
        record = self.out / "fedloom.npz"
        record.unlink(missing_ok=True)
        configs = self.node_configs()
        folder = self.work("fedloom")
        environment = self.environment(record)
        with deployed(folder, environment, {self.name: self.code}) as here:
            for name, config in zip(names_of(self.example.nodes), configs, strict=True):
                place = self.work(f"fedloom/{name}")
                here.attend(name, place, self.app["components"]["clientapp"], config)
            here.wait(lambda: self.connected(here), START_S)
            status = here.ended(here.submit(self.name, self.example.config), LIMIT_S)
        if status["state"] != "finished":
            raise Failed(f"the run is {status['state']}: {status.get('reason')}")
        return checked(record)

    def connected(self, here):
        rows = here.call("client", "list", "--dir", here.server)["clients"]
        return sum(row["online"] for row in rows) == self.example.nodes

    def outcome(self, flower_only):
        """Run, compare, and describe the outcome."""
        self.out.mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        found = {"name": self.name, "note": self.example.note, "runs": False}
        try:
            expected = self.flower()
            found["flower_s"] = round(time.monotonic() - begin, 1)
            actual = self.flower("again") if flower_only else self.fedloom()
        except (Failed, subprocess.TimeoutExpired) as error:
            return found | {"reason": str(error)}
        largest, where, numbers, other = compare(expected, actual)
        return found | {
            "runs": not other, "difference": largest, "where": where, "numbers": numbers,
            "reason": "; ".join(other[:3]), "seconds": round(time.monotonic() - begin, 1),
        }  # fmt: skip


def checked(record):
    """A record without errors of nodes."""
    if errors := errors_of(record):
        raise Failed(f"nodes answered with errors: {errors[0]}")
    return record


def refuse(runs, out, repository):
    """Ask the server to run apps that cannot run; returns its reasons by name."""
    folder = out / "refused"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    reasons = {}
    with deployed(folder, runs[0].environment(folder / "none.npz"),
                  {run.name: run.code for run in runs}) as here:  # fmt: skip
        for run in runs:
            try:
                status = here.ended(here.submit(run.name, {}), START_S)
                if status["rounds"]:
                    raise RuntimeError(f"{run.name} was not refused: {status}")
                reason = str(status.get("reason"))
            except Failed as error:
                reason = str(error)
            reasons[run.name] = first(reason.replace(f"{repository}/", ""))
    return reasons


def first(text):
    """The first sentence of a message."""
    return text.partition(" (see the server's log)")[0].partition(". ")[0].rstrip(".")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", type=Path, help="a folder with Flower's repository")
    parser.add_argument("--only", nargs="+", help="some apps; the others keep their outcome")
    parser.add_argument("--out", type=Path, default=Path("out/flower_examples"))
    parser.add_argument("--keep-flower", action="store_true", help="reuse the loop's results")
    parser.add_argument("--flower-only", action="store_true", help="compare two runs of the loop")
    parser.add_argument("--table", type=Path, help="a page to write the table into")
    arguments = parser.parse_args()
    repository, out = arguments.repository.resolve(), arguments.out.resolve()
    if not (repository / "examples").is_dir():
        parser.error(
            f"Expected Flower's repository in {repository}, got a folder without examples."
        )
    names = sorted(p.name for p in (repository / "examples").iterdir() if p.is_dir())
    runs = [Run(repository, name, out) for name in names if name != "docs"]  # pages, no app
    if unknown := set(arguments.only or ()) - set(names):
        parser.error(f"Expected names of examples, got {', '.join(sorted(unknown))}.")
    chosen = [run for run in runs if not arguments.only or run.name in arguments.only]
    for run in chosen:
        kept = arguments.keep_flower and (run.out / "flower.npz").exists()
        shutil.rmtree(run.out / "fedloom" if kept else run.out, ignore_errors=True)
    refused = [run for run in chosen if run.refusal()]
    reasons = refuse(refused, out, repository) if refused and not arguments.flower_only else {}
    for run in chosen:
        if run.refusal():
            note = f"{run.refusal()}. Refused before training: `{reasons.get(run.name)}`"
            found = {"name": run.name, "runs": False, "note": note}
        else:
            found = run.outcome(arguments.flower_only)
        run.out.mkdir(parents=True, exist_ok=True)
        (run.out / "outcome.json").write_text(json.dumps(found))
        print(json.dumps(found), flush=True)
    if arguments.table:
        files = [run.out / "outcome.json" for run in runs]
        outcomes = [json.loads(file.read_text()) for file in files if file.exists()]
        table.write(arguments.table, outcomes, repository)


if __name__ == "__main__":
    main()
