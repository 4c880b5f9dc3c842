"""Memory that an agent needs above the training code's own, in multiples of the model.

One agent attends over mTLS and does rounds with models of 40 and 400 MB: plain ones, with each
codec with and without error feedback, each client rule that sends or remembers more than a
difference, models that come as differences, parts of tensors, and noise by its owner's policy. Its
training changes the parameters in place and needs nothing else, so its own memory is the one copy
that it was handed (and a gradient, where a rule asks it for one).

`TorchClient` is measured too, with each rule. Its own is what a training of the same module by
plain torch needs in the same process, measured before the agent begins: the gradient, workspaces,
and pages of torch's code. The module itself is there when the agent is idle.

The peak is of the agent and its training process together, looked at every 5 ms: all that is
resident, pages of mapped files too, less what both had when they were idle before the first task.
With --isolation none the training is a thread of the agent, and the peak is the kernel's record
(VmHWM). Prints a table and writes
out/agent_memory.json; fails where a figure is above the target.
"""

import argparse
import json
import logging
import multiprocessing
import sys
import threading
import time
from pathlib import Path

import numpy as np
from deployment import deployed, memory_bytes, model, report

from fedloom.client import Client, MaskOf, SliceOf, Update, process_tree, run
from fedloom.client.agent import agent
from fedloom.client.agent.training_child import serve
from fedloom.client.agent.training_process import Program
from fedloom.client.agent.trim_memory import trim_all
from fedloom.client.config import load

SPAWN = multiprocessing.get_context("spawn")
MIB = 2**20
TARGET = 3.0
LOOK_S = 0.005
STEPS = 2
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
    **{
        f"{name}, error kept": (encoded(name, feedback=True), "", 1)
        for name in CODECS
        if name != "random_k"  # refused: see docs/compression.md
    },
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
TORCH = {
    "torch, plain": ({}, "", 0),
    "torch, fedprox": ({"rule": {"name": "fedprox", "mu": 0.1}}, "", 0),
    "torch, ifca": ({"strategy": {"name": "ifca", "clusters": 4}}, "", 0),
    **{f"torch, {name}": (strategy(name), "", name == "mimelite") for name in RULES},
}
CASES |= TORCH


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


def in_place(_shapes, _told):
    return InPlace()


def of_torch(shapes, told):
    """Linear layers; writes what a training of them by plain torch needs to a file."""
    import torch  # noqa: PLC0415 - the other agents do without
    from torch.nn.functional import mse_loss  # noqa: PLC0415 - likewise

    from fedloom.client.torch import TorchClient  # noqa: PLC0415 - likewise
    from fedloom.client.torch.steps import SGD  # noqa: PLC0415 - likewise

    def train():
        optimizer = SGD(module.parameters(), lr=0.0)  # torch.optim's imports 70 MB of code
        for _ in range(STEPS):
            optimizer.zero_grad()
            mse_loss(module(x), x).backward()
            optimizer.step()
        optimizer.zero_grad()

    torch.set_num_threads(1)
    module = torch.nn.Sequential(*(torch.nn.Linear(n, n, bias=False) for n, _ in shapes))
    x = torch.randn(8, shapes[0][0])
    train()
    trim_all()  # as an idle agent does: pages of torch's own code come back with the training
    idle, _ = memory_bytes("self")
    forget_peak("self")
    train()
    Path(told).write_text(str(memory_bytes("self")[1] - idle))
    trim_all()
    return TorchClient(module, (x, x), mse_loss)


MAKERS = {"numpy": in_place, "torch": of_torch}


def attend_here(path, kind, shapes, told):
    """An agent that trains in a thread."""
    logging.disable(logging.INFO)
    run(MAKERS[kind](shapes, told), path)


def attend_apart(path, kind, shapes, told):
    """An agent with a training process, as `fedloom client run` starts one."""
    logging.disable(logging.INFO)
    command = (sys.executable, __file__, "--train", json.dumps([kind, shapes, str(told)]))
    agent.attend(Program(command, keep_warm_s=1e6), load(path))


def one(num_values):
    """A model of one matrix alone: no tensor is a small part of it."""
    return layers(num_values, 1)


def layers(num_values, count=2):
    """A model of some square matrices."""
    width, rng = int((num_values // count) ** 0.5), np.random.default_rng(0)
    shape = (width, width)
    return {
        f"{at}.weight": 0.01 * rng.standard_normal(shape, dtype=np.float32) for at in range(count)
    }


def forget_peak(pid):
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def idle_of(pid):
    """What an agent and its training process hold, bytes."""
    return sum(memory_bytes(one)[0] for one in process_tree.tree(pid))


def peak_of(deployment, pid, params, tables, rounds):
    """Most that they held together while a run went on."""
    spec = {
        "name": "memory",
        "rounds": rounds,
        "evaluate": False,
        "cohort": {"goal": 1, "quorum": 1, "deadline_s": 3600.0},
        "train": {"steps": STEPS, "learning_rate": 1.0},
        **tables,
    }
    family, over, seen = process_tree.tree(pid), threading.Event(), [0]
    for one in family:
        forget_peak(one)

    def watch():
        while not over.wait(LOOK_S):
            seen.append(sum(memory_bytes(one)[0] for one in family))

    watching = threading.Thread(target=watch)
    watching.start()
    deployment.until(deployment.submit(params, spec), timeout_s=900.0)
    over.set()
    watching.join()
    return memory_bytes(pid)[1] if len(family) == 1 else max(seen)


def measure(cases, params, size_mb, rounds, attend):
    """The rows of an agent's cases, one after another; all by one policy and one kind of client."""
    size = sum(array.nbytes for array in params.values())
    _, policy, _ = CASES[cases[0]]
    with deployed(["a"]) as deployment:
        path = deployment.clients["a"]
        if policy:
            path.with_name("policy.toml").write_text(policy)
        kind, told = "torch" if cases[0] in TORCH else "numpy", path.with_name("of_torch")
        shapes = [array.shape for array in params.values()]
        device = SPAWN.Process(target=attend, args=(path, kind, shapes, told))
        device.start()
        try:
            deployment.wait_online(1)
            time.sleep(8.0)  # until it has given back what its start needed
            by_torch = int(told.read_text()) / size if kind == "torch" else 0.0
            idle = idle_of(device.pid)
            for case in cases:
                tables, _, own = CASES[case]
                peak = peak_of(deployment, device.pid, params, tables, rounds)
                models = (peak - idle) / size
                yield case, size_mb, idle / MIB, peak / MIB, models, models - own - by_torch
        finally:
            device.terminate()
            device.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[40, 400], help="MB of the model")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--one", action="store_true", help="all of the model in one tensor")
    parser.add_argument("--isolation", choices=["process", "none"], default="process")
    parser.add_argument("--train", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        kind, *given = arguments.train
        serve(lambda: MAKERS[kind](*given))
        return
    attend = attend_apart if arguments.isolation == "process" else attend_here
    columns = ("case", "MB", "idle_mib", "peak_mib", "models", "above_own")
    agents, rows = {}, []
    for case in arguments.cases:
        agents.setdefault((CASES[case][1], case in TORCH), []).append(case)
    for size_mb in arguments.sizes:
        for (_, by_torch), cases in agents.items():
            make = one if arguments.one else layers if by_torch else model
            params = make(size_mb * 1_000_000 // 4)
            for row in measure(cases, params, size_mb, arguments.rounds, attend):
                print(f"{row[0]}, {size_mb} MB: {row[-1]:.2f}", file=sys.stderr, flush=True)
                rows.append(row)
    report("agent_memory", columns, rows)
    print(f"target: above the training's own memory, under {TARGET:g} models")
    sys.exit(any(row[-1] >= TARGET for row in rows))


if __name__ == "__main__":
    main()
