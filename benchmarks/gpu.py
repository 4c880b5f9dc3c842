"""Simulated clients a second on a GPU, the agreement of kernels and precisions, and memory.

    python benchmarks/gpu.py [--pfl-python P/bin/python] [--flower-python F/bin/python]

Needs nothing but a card and a CUDA build of PyTorch; P and F are as in simulation.py, whose
processes and turns this uses. McMahan's 2NN and CNN, and a ResNet-18 with GroupNorm on images of
CIFAR's shape with the setting of pfl-research's benchmark, 50 clients a round of 50 examples each
(Granqvist et al. 2024, "pfl-research: simulation framework for accelerating research in Private
Federated Learning", section 4). Data are synthetic: speed needs no others.

Every way of one task trains the same clients from the same seeds for the same rounds. So the models
of a kernel and precision must be equal to the last bit for any number of workers, and kernels must
agree as gpu_agreement.py says. If they do not, the exit status is 1.

Writes a Markdown table to out/gpu.md and the figures to out/gpu.json. --device cpu --quick runs the
same code on tiny tasks without a card, for tests; its figures mean nothing.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from gpu_agreement import agreement, saved, ways
from simulation_tasks import ALL_TASKS, GPU_TASKS, QUICK_TASKS

from simulation import Bench, System, process_mb

OUT = Path(__file__).resolve().parent.parent / "out"
STARTS = 6
"""Systems that start at once beside a GPU: each has up to five processes."""
PEERS = "naive loop", "pfl-research, 1", "Flower, 2"


def systems(arguments, task, folder):
    """All that train a task, by name."""
    found, device = {}, arguments.device
    for way in ways(task, device, quick=arguments.quick):
        options = (
            *("--kernel", way.kernel, "--workers", str(way.workers)),
            *("--precision", way.precision, "--save", str(saved(folder, way))),
        )
        found[way.name] = System(sys.executable, "fedloom", options, device)
    found[PEERS[0]] = System(sys.executable, "naive", (), device)
    if arguments.pfl_python:
        found[PEERS[1]] = System(arguments.pfl_python, "pfl", (), device)
    if arguments.flower_python:
        found[PEERS[2]] = System(arguments.flower_python, "flower", (), device)
    return found


def memory(children, device):
    """MB that each system's processes hold: of the card, or of a CPU's main memory.

    PyTorch keeps what it once took of a card, so that this is the most since the start.
    """
    if device == "cpu":
        return {name: sum(map(process_mb, child.pids())) for name, child in children.items()}
    held = {}
    command = [
        "nvidia-smi",
        "--query-compute-apps=pid,used_memory",
        "--format=csv,noheader,nounits",
    ]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for line in listed.splitlines():
        pid, _, used = line.partition(",")
        held[int(pid)] = held.get(int(pid), 0.0) + float(used)
    return {
        name: sum(held.get(pid, 0.0) for pid in child.pids()) for name, child in children.items()
    }


def measure(arguments, task):
    """Speed, memory and agreement of every system on a task."""
    peaks = {}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        found = systems(arguments, task, folder)
        bench = Bench(found)
        turns = bench.speed(
            task,
            list(found),
            arguments.turns or (1 if arguments.quick else 5),
            at_once=1 if arguments.device == "cpu" else STARTS,
            after=lambda children: peaks.update(memory(children, arguments.device)),
        )
        agrees = agreement(task, arguments.device, folder, quick=arguments.quick)
    cohort = ALL_TASKS[task].cohort
    rates = {
        name: [cohort / seconds for turn, _ in own for seconds in turn]
        for name, own in turns.items()
    }
    return {"clients_per_s": rates, "memory_mb": peaks, "agreement": agrees, "told": bench.told}


def markdown(title, found):
    """The tables of all tasks."""
    lines = [f"# {title}", ""]
    for task, figures in found.items():
        rates, peaks = figures["clients_per_s"], figures["memory_mb"]
        base = statistics.median(rates["naive loop"]) if "naive loop" in rates else None
        lines += [f"## {task}", "", "| system | clients/s | least | most | × naive | MB |"]
        lines += ["|---|---:|---:|---:|---:|---:|"]
        for name, own in rates.items():
            middle = statistics.median(own)
            times = f"{middle / base:.2f}" if base else ""
            peak = f"{peaks[name]:,.0f}" if name in peaks else ""
            lines.append(
                f"| {name} | {middle:,.1f} | {min(own):,.1f} | {max(own):,.1f} | {times} | {peak} |"
            )
        lines += ["", "| model of | beside | largest difference | |", "|---|---|---:|---|"]
        lines += [f"| {a} | {b} | {far:.2g} | {how} |" for a, b, far, how in figures["agreement"]]
        lines.append("")
    return "\n".join(lines)


def machine(device):
    """What it ran on, in words."""
    name = torch.cuda.get_device_name(0) if device == "cuda" else platform.machine()
    return f"{name}, PyTorch {torch.__version__}, CUDA {torch.version.cuda or 'none'}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pfl-python", help="an interpreter that has pfl")
    parser.add_argument("--flower-python", help="an interpreter that has flwr[simulation]")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--turns", type=int, help="of each system on each task; 5, or 1 if quick")
    parser.add_argument("--tasks", nargs="+", choices=[*GPU_TASKS, *QUICK_TASKS])
    parser.add_argument("--quick", action="store_true", help="tiny tasks, two workers at most")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the table; default: out")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.exit(
            2, f"gpu.py: PyTorch {torch.__version__} finds no CUDA device; --device cpu --quick "
            "runs the same code without one.\n",
        )  # fmt: skip
    found = {}
    for task in arguments.tasks or (QUICK_TASKS if arguments.quick else GPU_TASKS):
        print(f"{task} …", flush=True)
        found[task] = measure(arguments, task)
        table = markdown(machine(arguments.device), found)
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "gpu.md").write_text(table + "\n")
        (arguments.out / "gpu.json").write_text(json.dumps(found, indent=2) + "\n")
    print(table)
    rows = [row for figures in found.values() for row in figures["agreement"]]
    parser.exit(int(any(row[3] == "DIFFERS" for row in rows)))


if __name__ == "__main__":
    main()
