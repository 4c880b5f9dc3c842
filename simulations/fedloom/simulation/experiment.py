"""The experiment: the clients and their data, a model, a run's specification, an engine.

The specification is the server's `RunSpec`, so the same run can be submitted to a deployment.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn

from fedloom.client import Client
from fedloom.client.torch.loop import Loss, MakeOptimizer
from fedloom.client.torch.rules.step_count import described
from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import lookup, toml
from fedloom.server.planning.spec import RunSpec, parse
from fedloom.simulation.clock.devices import Devices
from fedloom.simulation.data.population import Population
from fedloom.simulation.kernels.metrics import Metric, check_metrics
from fedloom.simulation.signature import check_takes
from fedloom.simulation.training.attacks import Attack
from fedloom.simulation.training.evaluate import Evaluate
from fedloom.simulation.training.stop import Goal, check_stop
from fedloom.strategies.compatibility import check_optimizer
from fedloom.strategies.privacy import Privacy

KERNELS = ("auto", "resident", "channels-last", "fused", "compiled", "graphed", "batched")
BACKENDS = ("local", "ray")
DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("float32", "tf32", "bf16")


def run_spec(settings: Mapping[str, Any] | str) -> RunSpec:
    """Return the specification of a run.

    >>> run_spec({"cohort": {"goal": 5}, "train": {"epochs": 1, "learning_rate": 0.1}}).rounds
    10

    Args:
        settings: a mapping, or TOML text, with the settings of a run.toml.

    Raises:
        UsageError: not TOML, an unknown setting, a wrong type, or settings that conflict.
    """
    return parse(toml.parse(settings, "a run") if isinstance(settings, str) else settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How clients are trained. `workers` and `backend` change no bit of the result.

    Attributes:
        kernel: `auto` or the name of a kernel.
        workers: processes; "auto" for one per core, or two per GPU.
        backend: `local`, or `ray` for workers on a Ray cluster.
        device: `auto` (a GPU if there is one), `cpu` or `cuda`.
        group: clients that the batched kernel trains together; may change last bits.
        debug: folder for the inputs of clients whose training fails or whose update is not finite,
            for `fedloom.simulation.replay`: models and examples. Empty: nothing is stored.
        precision: `float32`, or `tf32` or `bf16` for faster and coarser products; both change bits.

    Raises:
        UsageError: a setting has another value.
    """

    kernel: str = "auto"
    workers: int | Literal["auto"] = "auto"
    backend: str = "local"
    device: str = "auto"
    group: int = 32
    precision: str = "float32"
    debug: str = ""

    def __post_init__(self) -> None:
        for name, known in (
            ("kernel", KERNELS),
            ("backend", BACKENDS),
            ("device", DEVICES),
            ("precision", PRECISIONS),
        ):
            own = getattr(self, name)
            if name == "device" and own in ("gpu", "GPU"):
                own = "cuda"
            found = lookup(f"a known engine.{name}", own, {each: each for each in known})
            object.__setattr__(self, name, found)
        if self.workers != "auto" and (type(self.workers) is not int or self.workers < 1):
            raise UsageError(f'Expected engine.workers >= 1 or "auto", got {self.workers!r}.')
        if not isinstance(self.debug, str):
            raise UsageError(f"Expected engine.debug as the path of a folder, got {self.debug!r}.")
        if type(self.group) is not int or self.group < 1:
            raise UsageError(f"Expected engine.group >= 1, got {self.group!r}.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Experiment:
    """All that a simulation's result depends on, and how to run it.

        experiment = Experiment(
            population=sources.load(source="digits", clients=20, seed=0),
            model=functools.partial(models.build, name="digits-cnn"),
            spec=run_spec({"rounds": 10, "cohort": {"goal": 5}, "train": {...}}),
        )

    Attributes:
        population: the clients and their data.
        model: makes the initial model; called in each process, always with the same result.
        spec: of the run, as on a server; see `run_spec`.
        loss: mean loss of a batch, of (outputs, targets).
        optimizer: of local training; default: plain gradient descent.
        client: makes a client's own training code by its name; it replaces loss, optimizer and
            data. `model` still makes the initial parameters.
        attack: changes the updates of some clients; None for no attack.
        devices: speed and availability of devices; None: no virtual time.
        engine: how clients are trained.
        test_every: rounds between evaluations on central test examples; 0 for never.
        stop: metric on test examples → the value that ends the run when reached, or
            `{"at_most": value}` or `{"at_least": value}`; see `fedloom.simulation.training.stop`.
        evaluate: a function of (round, params), the model after a round as read-only arrays by
            name, that returns numbers by name; they join the metrics on the test examples.
        metrics: name → a function of all outputs and targets, tensors on the CPU, that returns a
            number, numbers by name, or None where it is undefined. Measured on the test examples,
            and by clients that evaluate on their held-out ones; see `fedloom.simulation.metrics`.
        settings: that the experiment was made from, for the record.

    Raises:
        UsageError: parts conflict.
    """

    population: Population
    model: Callable[[], nn.Module]
    spec: RunSpec
    loss: Loss = nn.functional.cross_entropy
    optimizer: MakeOptimizer | None = None
    client: Callable[[str], Client] | None = None
    attack: Attack | None = None
    devices: Devices | None = None
    engine: EngineSettings = field(default_factory=EngineSettings)
    test_every: int = 1
    stop: Mapping[str, Goal] = field(default_factory=dict)
    evaluate: Evaluate | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_metrics(self.metrics)
        self._simulate_noise()
        self._check_optimizer()
        if self.client is not None and self.population.transform is not None:
            raise UsageError(
                "data.transform is for the simulation's own training; clients with their own code "
                "read their data themselves. Remove data.transform, or transform in that code, "
                "such as by TorchClient(transform=…)."
            )
        if self.spec.sites:
            raise UsageError(
                "Expected no sites = true in a simulation, got it: sites change no bit of a model. "
                "Remove it; clients named SITE/NAME draw what the devices of sites draw."
            )
        goal, size = self.spec.round_config().goal, len(self.population)
        if goal > size:
            raise UsageError(
                f"cohort.goal = {goal} is larger than the population of {size} clients. Lower "
                "cohort.goal or raise data.clients."
            )
        if "seconds" in self.spec.build_selection().needs and self.devices is None:
            raise UsageError(
                f"selection.name = {self.spec.selection['name']!r} uses the clients' times and "
                "needs devices. Add [devices], or choose another policy."
            )
        self.attackers()
        in_time = self.spec.local_training().time_budget_s is not None
        if in_time and (self.devices is None or self.client is not None):
            raise UsageError(
                "train.time_budget_s needs [devices], and clients without their own code. Add "
                "[devices], or set train.patience or train.steps."
            )
        self._check_tests()
        heaviest = int(self.population.sizes.max())
        if self.spec.weighting == "examples" and heaviest > self.spec.max_weight:
            raise UsageError(
                f"A client has {heaviest} examples, more than max_weight = "
                f"{self.spec.max_weight:g}. Raise max_weight, as on a server."
            )
        if self.spec.evaluate and self.client is None and self.population.held_out_shards is None:
            raise UsageError(
                "evaluate = true needs held-out examples on the clients. Set data.held_out, or "
                "evaluate = false."
            )

    def attackers(self) -> frozenset[int]:
        """The attackers, as indices in the population.

        Raises:
            UsageError: the attack spares an unknown client.
        """
        if self.attack is None:
            return frozenset()
        return self.attack.attackers(self.population.names, self.spec.seed)

    def _check_tests(self) -> None:
        """Refuse tests of the model that cannot be made, and goals that they cannot reach."""
        check_stop(self.stop)
        if self.test_every < 0:
            raise UsageError(f"Expected test.every >= 0, got {self.test_every}.")
        if self.evaluate is not None:
            check_takes("evaluate", self.evaluate, "round", "params")
            if not self.test_every:
                raise UsageError("evaluate needs test.every >= 1: it says how often it is called.")
        tests = self.population.test is not None or self.evaluate is not None
        if self.stop and not (tests and self.test_every):
            raise UsageError("[stop] needs test examples and test.every >= 1.")

    def _check_optimizer(self) -> None:
        """Refuse a local optimizer for which the client rule's formulas do not hold."""
        if self.optimizer is None or self.client is not None:
            return
        spec = self.spec
        rate = spec.local_training().at(1, spec.round_config().goal).learning_rate
        made = self.optimizer([nn.Parameter(torch.zeros(1))], lr=rate)
        try:
            check_optimizer(spec.client_rule, described(made, rate, varies=False))
        except ValueError as error:
            raise UsageError(str(error)) from None

    def _simulate_noise(self) -> None:
        """Draw noise from the seed, so that the result repeats; the privacy claim states it."""
        spec, size = self.spec, len(self.population)
        settings = spec.build_privacy()
        if settings is None:
            return
        if settings.sampling != "none" and (settings.population or 0) > size:
            raise UsageError(
                f"privacy.population = {settings.population} is larger than the population of "
                f"{size} clients. Lower it, or raise data.clients."
            )
        if settings.correlated:
            self._check_participation(settings)
        seeded = replace(spec, privacy={**spec.privacy, "noise": "seed"})
        object.__setattr__(self, "spec", seeded)

    def _check_participation(self, settings: Privacy) -> None:
        """Refuse a population of which too few may take part at some time: a round would wait."""
        goal, size = self.spec.round_config().goal, len(self.population)
        rounds, most = self.spec.run_config().rounds, settings.participations
        name = "restart_every" if settings.separation is None else "separation"
        apart = getattr(settings, name)
        needed, text = goal * apart, f"cohort.goal × privacy.{name}"
        if most is not None:
            needed += goal * max(rounds - apart, 0) // most
            text += f" + cohort.goal × (rounds - privacy.{name}) / privacy.participations"
        if needed > size:
            raise UsageError(
                f"A client takes part once in so many rounds, so {text} = {needed} needs as many "
                f"clients, got {size}. Change one of them, or raise data.clients."
            )
        if self.devices is not None and self.devices.availability is not None:
            raise UsageError(
                f"privacy.mechanism = {settings.mechanism} excludes [devices.availability]: rounds "
                "would wait for clients that have not taken part yet."
            )
