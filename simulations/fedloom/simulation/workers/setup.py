"""Set up the workers of an experiment, with a reason for the choice of the kernel.

Invariant: the kernel depends only on the experiment and the machine's devices, never on a
measurement, so that the load of a machine cannot change a result.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from fedloom.cli.common.lazy import load
from fedloom.client.torch import modules
from fedloom.protocol.errors import UsageError
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.tensors.container import TensorEntry, build_header, dtype_name
from fedloom.server.planning import limits
from fedloom.server.planning.spec import RunSpec
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.kernels import choose
from fedloom.simulation.kernels.base import Kernel
from fedloom.simulation.kernels.custom import ClientKernel
from fedloom.simulation.models import called
from fedloom.simulation.output import words
from fedloom.simulation.output.environment import available_cpus
from fedloom.simulation.training import masked_sum, stop
from fedloom.simulation.training.dry_run import check_fit
from fedloom.simulation.training.forecast import forecast
from fedloom.simulation.workers.base import WorkerGroup
from fedloom.simulation.workers.failure_cases import FailureCases
from fedloom.simulation.workers.local import LocalWorkers
from fedloom.simulation.workers.pool import WorkerPool
from fedloom.simulation.workers.precision import check_precision, lowered, set_precision
from fedloom.simulation.workers.worker import UpdateChecks, Worker
from fedloom.strategies import Partial, TensorSpec
from fedloom.strategies.masking.sessions import sum_lines
from fedloom.strategies.optimizers.blockwise import slot_dtype
from fedloom.strategies.privacy import claim_lines

GPU_WORKERS = 2
"""Processes per GPU: one trains while the other copies and sums."""

_LOWER = {"bf16": ("engine.precision",)}
"""What a kernel must support for a precision: TF32 is a matter of the device alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """Workers that are ready, with what they need.

    Attributes:
        crew: the workers.
        kernel: name of the kernel.
        why: reason of its choice.
        group: clients that are trained together.
        params: the initial model by name.
        manifest: of the model.
        sums: shape and dtype of a round's sums.
        received: tensors that clients get besides the model, "slot/tensor".
    """

    crew: WorkerGroup
    kernel: str
    why: str
    group: int
    params: Mapping[str, NDArray[Any]]
    manifest: Manifest
    sums: Partial
    received: dict[str, TensorSpec]

    @property
    def text(self) -> str:
        """Kernel, workers and reason, for displays."""
        return f"{self.kernel} kernel, {words.things(self.crew.size, 'worker')}: {self.why}"


def set_up_workers(experiment: Experiment, kernel: str | None = None) -> WorkerSetup:
    """Set up workers.

    Args:
        experiment: to train.
        kernel: of a resumed simulation; None to choose one.

    Raises:
        UsageError: the kernel does not support the model, or the device does not exist.
    """
    torch.set_num_threads(1)  # before any computation: forked workers inherit no thread pool
    model = experiment.model()
    device = checked_device(experiment)
    name, why = chosen(experiment, model, device, kernel)
    check_fit(experiment, device)
    params = {n: a.copy() for n, a in modules.parameters(model).items()}
    manifest = manifest_of(model, params)
    sums = limits.empty_sum(experiment.spec, manifest)
    dtypes = {n: manifest.wire_dtype(n) for n in manifest.dtypes}
    checks = UpdateChecks(limits.limits(experiment.spec, manifest), dtypes, manifest)
    size = worker_count(experiment, device)
    make = partial(make_worker, experiment, name, device.type, checks)
    devices = [worker_device(device.type, number) for number in range(size)]
    crew: WorkerGroup
    if experiment.engine.backend == "ray":
        gpu = 1 / GPU_WORKERS if device.type == "cuda" else 0.0
        ray_crew = load("fedloom.simulation.workers.ray:RayCrew")  # names a missing extra
        crew = ray_crew(make, size, empty=sums, gpu=gpu)
    elif size == 1:
        crew = LocalWorkers(make(0), str(devices[0]))
    else:
        fork = device.type == "cpu" and hasattr(os, "fork")
        if fork and experiment.client is None:
            choose.KERNELS[name].load(model, experiment.spec.local_training().batch_size or 0)
        crew = WorkerPool(
            make,
            size,
            names=[f"worker {n} ({place})" for n, place in enumerate(devices)],
            model=dict(manifest.specs) | received_specs(experiment, manifest),
            empty=sums,
            fork=fork,
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
    """Shape and dtype of tensors that clients get besides the model, by "slot/tensor"."""
    return {
        f"{slot}/{name}": TensorSpec(shape=spec.shape, dtype=slot_dtype(spec.dtype))
        for slot in experiment.spec.client_rule.receives
        for name, spec in manifest.specs.items()
    }


def chosen(
    experiment: Experiment, model: torch.nn.Module, device: torch.device, before: str | None
) -> tuple[str, str]:
    """The kernel's name and the reason of its choice.

    Raises:
        UsageError: the kernel does not support the experiment.
    """
    if experiment.client is not None:
        return "client", "the experiment has its clients' own code"
    choice = choose.choose(
        experiment.engine.kernel if before is None else before,
        model,
        experiment.loss,
        experiment.spec.client_rule,
        experiment.optimizer,
        device,
        experiment.population,
        [*experiment.spec.special, *_LOWER.get(experiment.engine.precision, ())],
    )
    why = choice.why if before is None else "as in the earlier rounds"
    precision = experiment.engine.precision
    return choice.name, why if precision == "float32" else f"{why}; products in {precision}"


def plan(experiment: Experiment) -> dict[str, str]:
    """A description of what would be trained, without setting up workers.

    Raises:
        UsageError: the kernel does not support the model, or the device does not exist.
    """
    masked_sum.check(experiment)
    model = experiment.model()
    device = checked_device(experiment)
    name, why = chosen(experiment, model, device, None)
    check_fit(experiment, device)
    size = sum(tensor.numel() for tensor in model.state_dict().values())
    config = experiment.spec.round_config()
    params = modules.parameters(model)
    manifest = manifest_of(model, params)
    return {
        "model": f"{size:,} values in {len(model.state_dict())} tensors",
        **_transform(experiment),
        "rounds": f"{experiment.spec.rounds}, each of {config.goal} clients",
        "kernel": f"{name}: {why}",
        "workers": f"{worker_count(experiment, device)} on {device.type}",
        "devices": "modelled" if experiment.devices is not None else "none: no virtual time",
        **_tests(experiment),
        **forecast(experiment, manifest, params),
        **_privacy(experiment, manifest),
        **_sums(experiment.spec),
    }


def _transform(experiment: Experiment) -> dict[str, str]:
    pipeline = experiment.population.transform
    return {} if pipeline is None else {"transform": str(pipeline)}


def _tests(experiment: Experiment) -> dict[str, str]:
    """What is measured of the model, what ends the run, and what is stored of failures."""
    found = {}
    if experiment.metrics:
        found["metrics"] = ", ".join(f"{n} ({called(f)})" for n, f in experiment.metrics.items())
    if experiment.stop:
        evaluates = experiment.evaluate is not None
        stop.check_measured(experiment.stop, experiment.metrics, evaluates=evaluates)
        found["stop"] = f"{stop.in_words(experiment.stop)} on the test examples"
    if experiment.engine.debug:
        found["debug"] = f"inputs of clients that fail are stored in {experiment.engine.debug}"
    return found


def _sums(spec: RunSpec) -> dict[str, str]:
    """The grid of narrow sums, one line for each fact."""
    facts = spec.sum_facts()
    if facts is None:
        return {} if spec.privacy else {"sums": "exact"}
    first, *rest = sum_lines(facts)
    parts = (line.partition(": ") for line in rest)
    return {"sums": first} | {f"  {name}": text for name, _, text in parts}


def _privacy(experiment: Experiment, manifest: Manifest) -> dict[str, str]:
    """The privacy claim, one line for each assumption."""
    claim = limits.claim(experiment.spec, manifest)
    if claim is None:
        return {}
    first, *rest = claim_lines(claim)
    parts = (line.partition(": ") for line in rest)
    return {"privacy": first} | {f"  {name}": text for name, _, text in parts}


def make_worker(
    experiment: Experiment, kernel: str, device: str, checks: UpdateChecks, number: int
) -> Worker:
    """Build a worker in its own process."""
    torch.set_num_threads(1)
    place = worker_device(device, number)
    set_precision(experiment.engine.precision, place)
    made = make_kernel(experiment, kernel, place)
    cases = None
    if experiment.engine.debug:
        cases = FailureCases(Path(experiment.engine.debug), experiment.population, kernel)
    return Worker(made, checks, experiment.population.names, cases)


def make_kernel(experiment: Experiment, name: str, device: torch.device) -> Kernel:
    """The kernel of a name given by `chosen`."""
    own = experiment.client is not None
    kernel = choose.KERNELS["resident" if own else name]
    made = kernel(
        experiment.model(),
        experiment.loss,
        experiment.population,
        device,
        experiment.optimizer,
        metrics=experiment.metrics,
    )
    if experiment.engine.precision == "bf16":
        lowered(made.model)  # after the kernel has checked it in float32
    if experiment.client is None:
        return made
    return ClientKernel(experiment.client, experiment.population.names, measuring=made)


def checked_device(experiment: Experiment) -> torch.device:
    """The kind of device to train on.

    Raises:
        UsageError: it does not exist, or lacks the precision.
    """
    device = device_of(experiment.engine.device)
    own_code = experiment.client is not None
    check_precision(experiment.engine.precision, device, own_code=own_code)
    return device


def device_of(wanted: str) -> torch.device:
    """The kind of device to train on.

    Raises:
        UsageError: CUDA was requested and does not exist.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise UsageError(
            f"Expected a CUDA device, but PyTorch {torch.__version__} finds none. Set "
            'engine.device to "cpu" or "auto", or install a CUDA build of PyTorch and check '
            "nvidia-smi."
        )
    return torch.device("cuda" if there else "cpu")


def worker_device(kind: str, number: int) -> torch.device:
    """The device of worker 0, 1, …: GPUs in turn."""
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", number % torch.cuda.device_count())


def worker_count(experiment: Experiment, device: torch.device) -> int:
    """Number of workers: as set, but at most the clients of a round."""
    wanted = experiment.engine.workers
    if wanted == "auto":
        gpus = GPU_WORKERS * torch.cuda.device_count() if device.type == "cuda" else 0
        wanted = gpus or available_cpus()
    return min(wanted, experiment.spec.round_config().goal)


def manifest_of(model: torch.nn.Module, params: Mapping[str, NDArray[Any]]) -> Manifest:
    """The manifest as a server reads it from the model's file.

    Raises:
        UsageError: the model has a tensor that cannot be averaged.
    """
    dtypes = {name: dtype_name(array.dtype) for name, array in params.items()}
    for name, tensor in model.state_dict().items():
        if tensor.dtype == torch.bfloat16:
            dtypes[name] = "BF16"
        if tensor.dtype == torch.bool:
            raise UsageError(
                f"The bool tensor {name!r} cannot be averaged. Register it with persistent=False."
            )
    _, layout = build_header(TensorEntry(n, dtypes[n], a.shape) for n, a in params.items())
    specs = {n: TensorSpec(shape=a.shape, dtype=a.dtype) for n, a in params.items()}
    return Manifest(dtypes=dtypes, specs=specs, size_bytes=layout.size_bytes)
