"""From an experiment to the workers that will train it, with a reason for every choice.

Invariant: the choice of the kernel follows from the experiment and the machine's devices alone,
never from a measurement, so that noise cannot change a result.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray

from fedloom.cli.common.lazy import load
from fedloom.client.torch import modules
from fedloom.protocol.errors import UsageError
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.tensors.container import TensorEntry, build_header, dtype_name
from fedloom.server.planning import limits
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.kernels import choose
from fedloom.simulation.kernels.base import Kernel
from fedloom.simulation.kernels.custom import ClientKernel
from fedloom.simulation.training.dry_run import check_fit
from fedloom.simulation.workers.base import WorkerGroup
from fedloom.simulation.workers.local import LocalWorkers
from fedloom.simulation.workers.pool import WorkerPool
from fedloom.simulation.workers.worker import UpdateChecks, Worker
from fedloom.strategies.exact.partial import Key, TensorSpec
from fedloom.strategies.optimizers.blockwise import slot_dtype
from fedloom.strategies.privacy import claim_lines

GPU_WORKERS = 2
"""Processes a GPU: one trains while the other copies and sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """Workers that are ready, and what they are for.

    Attributes:
        crew: the workers.
        kernel: the name of what trains.
        why: it was chosen.
        group: clients that are trained together.
        params: the initial model by name.
        manifest: of the model.
        sums: what a round's sum is of.
        received: what clients get beside the model, "slot/tensor".
    """

    crew: WorkerGroup
    kernel: str
    why: str
    group: int
    params: Mapping[str, NDArray[Any]]
    manifest: Manifest
    sums: dict[Key, TensorSpec]
    received: dict[str, TensorSpec]

    @property
    def text(self) -> str:
        """What runs this, in words."""
        workers = f"{self.crew.size} worker{'s' if self.crew.size > 1 else ''}"
        return f"{self.kernel} kernel, {workers}: {self.why}"


def set_up_workers(experiment: Experiment, kernel: str | None = None) -> WorkerSetup:
    """Get workers ready.

    Args:
        experiment: what they will train.
        kernel: the one to go on with, of a simulation that is resumed.

    Raises:
        UsageError: what was asked for cannot carry the model, or is not there.
    """
    torch.set_num_threads(1)  # before anything computes: forked workers inherit no thread pool
    model = experiment.model()
    device = device_of(experiment.engine.device)
    name, why = chosen(experiment, model, device, kernel)
    check_fit(experiment, device)
    params = {n: a.copy() for n, a in modules.parameters(model).items()}
    manifest = manifest_of(model, params)
    sums = limits.sums(experiment.spec, manifest)
    dtypes = {n: manifest.wire_dtype(n) for n in manifest.dtypes}
    checks = UpdateChecks(limits.limits(experiment.spec, manifest), dtypes, manifest)
    size = worker_count(experiment, device)
    make = partial(make_worker, experiment, name, device.type, checks)
    devices = [worker_device(device.type, number) for number in range(size)]
    crew: WorkerGroup
    if experiment.engine.backend == "ray":
        gpu = 1 / GPU_WORKERS if device.type == "cuda" else 0.0
        ray_crew = load(
            "fedloom.simulation.workers.ray:RayCrew"
        )  # names the extra if it is missing
        crew = ray_crew(make, size, sums=sums, exponent=experiment.spec.exponent(), gpu=gpu)
    elif size == 1:
        crew = LocalWorkers(make(0), str(devices[0]))
    else:
        crew = WorkerPool(
            make,
            size,
            names=[f"worker {n} ({place})" for n, place in enumerate(devices)],
            model=dict(manifest.specs) | received_specs(experiment, manifest),
            sums=sums,
            exponent=experiment.spec.exponent(),
            fork=device.type == "cpu" and hasattr(os, "fork"),
        )
    return WorkerSetup(
        crew=crew,
        kernel=name,
        why=why,
        group=experiment.engine.group if name == "batched" else 1,
        params=params,
        manifest=manifest,
        sums=sums,
        received=received_specs(experiment, manifest),
    )


def received_specs(experiment: Experiment, manifest: Manifest) -> dict[str, TensorSpec]:
    """What clients get beside the model, "slot/tensor"."""
    return {
        f"{slot}/{name}": TensorSpec(shape=spec.shape, dtype=slot_dtype(spec.dtype))
        for slot in experiment.spec.build_strategy().rule.receives
        for name, spec in manifest.specs.items()
    }


def chosen(
    experiment: Experiment, model: torch.nn.Module, device: torch.device, before: str | None
) -> tuple[str, str]:
    """The kernel's name and why it is that one.

    Raises:
        UsageError: the kernel asked for cannot carry the experiment.
    """
    if experiment.client is not None:
        return "client", "the experiment brings its clients' own code"
    choice = choose.choose(
        experiment.engine.kernel if before is None else before,
        model,
        experiment.loss,
        experiment.spec.build_strategy().rule,
        experiment.optimizer,
        device,
        experiment.population,
        experiment.spec.special,
    )
    return choice.name, choice.why if before is None else "as the simulation was begun"


def plan(experiment: Experiment) -> dict[str, str]:
    """What would train, in words, without setting up workers.

    Raises:
        UsageError: what was asked for cannot carry the model, or is not there.
    """
    model = experiment.model()
    device = device_of(experiment.engine.device)
    name, why = chosen(experiment, model, device, None)
    check_fit(experiment, device)
    size = sum(tensor.numel() for tensor in model.state_dict().values())
    config = experiment.spec.round_config()
    return {
        "model": f"{size:,} values in {len(model.state_dict())} tensors",
        "rounds": f"{experiment.spec.rounds}, each of {config.goal} clients",
        "kernel": f"{name}: {why}",
        "workers": f"{worker_count(experiment, device)} on {device.type}",
        "devices": "modelled" if experiment.devices is not None else "none: no virtual time",
        **_privacy(experiment),
    }


def _privacy(experiment: Experiment) -> dict[str, str]:
    """The claim, a line for each thing that it hangs on."""
    private = experiment.spec.privacy_plan()
    if private is None:
        return {}
    first, *rest = claim_lines(private.claim())
    parts = (line.partition(": ") for line in rest)
    return {"privacy": first} | {f"  {name}": text for name, _, text in parts}


def make_worker(
    experiment: Experiment, kernel: str, device: str, checks: UpdateChecks, number: int
) -> Worker:
    """Build a worker in its own process."""
    torch.set_num_threads(1)
    made = make_kernel(experiment, kernel, worker_device(device, number))
    return Worker(made, checks, experiment.population.names)


def make_kernel(experiment: Experiment, name: str, device: torch.device) -> Kernel:
    """What trains, by the name that `chosen` gave."""
    own = experiment.client is not None
    kernel: Callable[..., Kernel] = choose.KERNELS["resident" if own else name]
    made = kernel(
        experiment.model(), experiment.loss, experiment.population, device, experiment.optimizer
    )
    if experiment.client is None:
        return made
    return ClientKernel(experiment.client, experiment.population.names, measuring=made)


def device_of(wanted: str) -> torch.device:
    """The kind of device to train on.

    Raises:
        UsageError: CUDA was asked for and there is none.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise UsageError(
            f"Expected a CUDA device, PyTorch {torch.__version__} sees none. Set engine.device to "
            '"cpu" or "auto", or install a CUDA build of PyTorch and check nvidia-smi.'
        )
    return torch.device("cuda" if there else "cpu")


def worker_device(kind: str, number: int) -> torch.device:
    """Where worker 0, 1, … trains: GPUs in turn."""
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", number % torch.cuda.device_count())


def worker_count(experiment: Experiment, device: torch.device) -> int:
    """How many workers: what was asked for, but no more than a round has clients."""
    wanted = experiment.engine.workers
    if wanted == "auto":
        gpus = GPU_WORKERS * torch.cuda.device_count() if device.type == "cuda" else 0
        wanted = gpus or cores()
    return min(wanted, experiment.spec.round_config().goal)


def cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def manifest_of(model: torch.nn.Module, params: Mapping[str, NDArray[Any]]) -> Manifest:
    """What a server would read from the model's file.

    Raises:
        UsageError: it holds a tensor that cannot be averaged.
    """
    dtypes = {name: dtype_name(array.dtype) for name, array in params.items()}
    for name, tensor in model.state_dict().items():
        if tensor.dtype == torch.bfloat16:
            dtypes[name] = "BF16"
        if tensor.dtype == torch.bool:
            raise UsageError(
                f"Expected tensors of numbers, got bool {name!r}: it cannot be averaged. "
                "Register it with persistent=False."
            )
    _, layout = build_header(TensorEntry(n, dtypes[n], a.shape) for n, a in params.items())
    specs = {n: TensorSpec(shape=a.shape, dtype=a.dtype) for n, a in params.items()}
    return Manifest(dtypes=dtypes, specs=specs, size_bytes=layout.size_bytes)
