"""Memory that an agent needs above the training code's own, in multiples of the model.

One agent attends over mTLS and does rounds with models of 40 and 400 MB: plain ones, with each
codec with and without error feedback, each client rule that sends or remembers more than a
difference, models that come as differences, parts of tensors, and noise by its owner's policy. Its
training changes the parameters in place and needs nothing else, so its own memory is the one copy
that it was handed (and a gradient, where a rule asks it for one).

The peak is the kernel's record (VmHWM): all that is resident, pages of mapped files too, less what
the agent had when it was idle before its first task. Prints a table and writes
out/agent_memory.json; fails where a figure is above the target.
"""

import argparse
import logging
import multiprocessing
import sys
import time
from pathlib import Path

import numpy as np
from deployment import deployed, memory_bytes, model, report

from fedloom.client import Client, MaskOf, SliceOf, Update, run

SPAWN = multiprocessing.get_context("spawn")
MIB = 2**20
TARGET = 3.0
CODECS = {
    "fp16": {},
    "bf16": {},
    "int8": {},
    "int4": {},
    "top_k": {"fraction": 0.01},
    "random_k": {"fraction": 0.1},
    "low_rank": {"rank": 2},
    "lossless": {},
}
RULES = {
    "scaffold": {"clients": 1},
    "feddyn": {"clients": 1, "alpha": 0.1},
    "mimelite": {},
    "fednova": {},
    "qfedavg": {"q": 1.0},
}
POLICY = '[privacy]\nclip_norm = 10.0\notherwise = "add"\n'
NOISE = f"{POLICY}noise = 1.0\n"


def encoded(name, *, feedback):
    return {"compression": {"up": {"name": name, **CODECS[name], "error_feedback": feedback}}}


def strategy(name):
    return {"strategy": {"name": name, **RULES[name]}}


# By name: the run's tables, what the device's owner says, models that the training itself holds.
CASES = {
    "plain": ({}, "", 1),
    **{name: (encoded(name, feedback=False), "", 1) for name in CODECS},
    **{f"{name}, error kept": (encoded(name, feedback=True), "", 1) for name in CODECS},
    **{name: (strategy(name), "", 2 if name == "mimelite" else 1) for name in RULES},
    "scaffold, int8, error kept": (
        {**strategy("scaffold"), **encoded("int8", feedback=True)},
        "",
        1,
    ),
    "models as int8 differences": ({"compression": {"down": {"name": "int8"}}}, "", 1),
    "boxes of tensors": ({"config": {"part": "box"}}, "", 1),
    "masked tensors": ({"config": {"part": "mask"}}, "", 1.25),
    "boxes, int8, error kept": (
        {"config": {"part": "box"}, **encoded("int8", feedback=True)},
        "",
        1,
    ),
    "owner clips": ({}, POLICY, 1),
    "owner clips and adds noise": ({}, NOISE, 1),
    "owner adds noise, int8": (encoded("int8", feedback=False), NOISE, 1),
}


class InPlace(Client):
    """Changes what it was handed, and needs nothing else."""

    def train(self, params, task):
        for name in params:
            params[name] += np.float32(0.01 * task.settings.learning_rate)
        if task.rule.needs_gradient:
            task.local.full_gradient = {n: np.full_like(a, 0.01) for n, a in params.items()}
        task.local.initial_loss = 1.0
        part = task.config.get("part")
        return Update({n: self._part(a, part) for n, a in params.items()}, 1)

    @staticmethod
    def _part(values, part):
        if part == "mask":
            mask = np.ones(values.shape, np.bool_)
            mask.reshape(-1)[::10] = False
            return MaskOf(values, mask)
        if part == "box":
            stops = [max(1, size * 9 // 10) for size in values.shape]
            box = values[tuple(slice(stop) for stop in stops)]
            return SliceOf(box, tuple((0, stop) for stop in stops))
        return values


def attend(path):
    logging.disable(logging.INFO)
    run(InPlace(), path)


def one(num_values):
    """A model of one matrix alone: no tensor is a small part of it."""
    width = int(num_values**0.5)
    values = np.random.default_rng(0).standard_normal((width, width), dtype=np.float32)
    return {"w": 0.01 * values}


def peak_of(deployment, pid, params, tables, rounds):
    """Most that an agent held while a run went on."""
    spec = {
        "name": "memory",
        "rounds": rounds,
        "evaluate": False,
        "cohort": {"goal": 1, "quorum": 1, "deadline_s": 3600.0},
        "train": {"steps": 1, "learning_rate": 1.0},
        **tables,
    }
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    deployment.until(deployment.submit(params, spec), timeout_s=900.0)
    return memory_bytes(pid)[1]


def measure(cases, size_mb, policy, rounds, make):
    """The rows of an agent's cases, one after another."""
    params = make(size_mb * 1_000_000 // 4)
    size = sum(array.nbytes for array in params.values())
    with deployed(["a"]) as deployment:
        if policy:
            deployment.clients["a"].with_name("policy.toml").write_text(policy)
        agent = SPAWN.Process(target=attend, args=(deployment.clients["a"],), daemon=True)
        agent.start()
        try:
            deployment.wait_online(1)
            time.sleep(8.0)  # until it has given back what its start needed
            idle, _ = memory_bytes(agent.pid)
            for case in cases:
                tables, _, own = CASES[case]
                peak = peak_of(deployment, agent.pid, params, tables, rounds)
                models = (peak - idle) / size
                yield case, size_mb, idle / MIB, peak / MIB, models, models - own
        finally:
            agent.kill()
            agent.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[40, 400], help="MB of the model")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--one", action="store_true", help="all of the model in one tensor")
    arguments = parser.parse_args()
    columns = ("case", "MB", "idle_mib", "peak_mib", "models", "above_own")
    make, rows = one if arguments.one else model, []
    for size_mb in arguments.sizes:
        for policy in dict.fromkeys(CASES[case][1] for case in arguments.cases):
            cases = [case for case in arguments.cases if CASES[case][1] == policy]
            for row in measure(cases, size_mb, policy, arguments.rounds, make):
                print(f"{row[0]}, {size_mb} MB: {row[-1]:.2f}", file=sys.stderr, flush=True)
                rows.append(row)
    report("agent_memory", columns, rows)
    print(f"target: above the training's own memory, under {TARGET:g} models")
    sys.exit(any(row[-1] >= TARGET for row in rows))


if __name__ == "__main__":
    main()
