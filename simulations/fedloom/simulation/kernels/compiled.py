"""The local step under `torch.compile`: forward, loss, gradient and update as one program.

Compiled once in each process, for full batches. The last batch of an epoch may be smaller and takes
the resident step, so that no size is compiled for a single use. Compiled code is kept in the user's
cache folder for later processes.

Invariant: the examples of every step are those of the deployed client; results differ from
`resident` by rounding, because the compiler reorders arithmetic.

Sources: Ansel et al. 2024, "PyTorch 2: Faster machine learning through dynamic Python bytecode
transformation and graph compilation", sections 3 and 4.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from fedloom.client.torch import batches, loop
from fedloom.client.training.client_rule import RuleContext
from fedloom.simulation.data.population import Population
from fedloom.simulation.kernels.base import ClientJob, RoundTask
from fedloom.simulation.kernels.holdings import Pair
from fedloom.simulation.kernels.one_by_one import Fitted
from fedloom.simulation.kernels.resident import Resident
from fedloom.strategies import ClientRule, FedProx, Plain

Tensors = list[Tensor]
Step = Callable[[Tensors, Tensors, Tensor, Tensor, Pair], tuple[Tensor, Tensor]]
"""Takes parameters, anchors (empty without FedProx), learning rate, mu and a batch. Changes the
parameters in place and returns the loss and the outputs before the step."""
_CACHE = "TORCHINDUCTOR_CACHE_DIR"


class Compiled(Resident):
    """Trains by compiled plain gradient descent; if compilation fails, as the resident kernel.

    Attributes:
        note: why compilation failed; empty otherwise.
    """

    follows: ClassVar[frozenset[str]] = frozenset()

    def prepare(self) -> None:
        """Make the step, and its compiled form, which compiles when it is first called."""
        self.note = ""
        named = {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}
        self._params = list(named.values())
        self._plain = _program(self.model, self.loss, list(named))
        self._faster = self.faster(self._plain)
        self._anchors = [param.clone() for param in self._params]
        self._lr, self._mu = (torch.zeros((), device=self.device) for _ in range(2))

    def faster(self, step: Step) -> Step:
        """The step in the form that trains on full batches."""
        return _compile(step)

    @classmethod
    def carries(
        cls,
        model: nn.Module,
        loss: loop.Loss,  # noqa: ARG003 - all are supported
        rule: ClientRule,
        optimizer: loop.MakeOptimizer | None,
        population: Population | None = None,  # noqa: ARG003
    ) -> str:
        """See `OnModel.carries`."""
        name = cls.__name__.lower()
        if optimizer not in (None, loop.SGD):
            return f"{name} supports only plain gradient descent"
        if type(rule) not in (Plain, FedProx):
            return f"{name} supports only the client rules plain and fedprox, not {rule.name!r}"
        if next(model.buffers(), None) is not None:
            return f"{name} does not update buffers, such as those of batch normalisation"
        return ""

    def fit(self, job: ClientJob, task: RoundTask, local: RuleContext) -> Fitted:
        """Train on the batches that the deployed client would draw."""
        if self.note or not task.settings.batch_size:
            return super().fit(job, task, local)
        try:
            return self._fit(job, task), self.state.parts()
        except Exception as error:  # noqa: BLE001 - the compiler may raise anything
            reason = str(error).strip().splitlines() or [""]
            self.note = f"not {type(self).__name__.lower()} ({type(error).__name__}: {reason[0]})"
        self.state.reset()
        return super().fit(job, task, local)

    @torch.no_grad()
    def _fit(self, job: ClientJob, task: RoundTask) -> loop.MetricSums:
        settings = task.settings
        pull = task.rule.mu if isinstance(task.rule, FedProx) else 0.0
        anchors = self._anchors if pull else []
        for anchor, param in zip(anchors, self._params, strict=False):
            anchor.copy_(param)
        self._lr.fill_(settings.learning_rate)
        self._mu.fill_(pull)
        drawn = batches.training(self.holdings.source(job.client), settings, job.seed)
        totals = loop.MetricSums()
        self.model.train()
        with loop.seeded(job.seed, self.device):
            for x, y in drawn:
                step = self._faster if len(y) == settings.batch_size else self._plain
                value, output = step(self._params, anchors, self._lr, self._mu, (x, y))
                totals.add(value, output, y)
        return totals


def _program(model: nn.Module, loss: loop.Loss, names: list[str]) -> Step:
    def step(
        params: Tensors, anchors: Tensors, lr: Tensor, mu: Tensor, batch: Pair
    ) -> tuple[Tensor, Tensor]:
        x, y = batch

        def objective(values: Tensors) -> tuple[Tensor, Tensor]:
            named = dict(zip(names, values, strict=True))
            output: Tensor = functional_call(model, named, (x,))
            return loss(output, y), output

        grads, (value, output) = grad_and_value(objective, has_aux=True)(params)
        if anchors:
            pairs = zip(grads, params, anchors, strict=True)
            grads = [grad + mu * (param - anchor) for grad, param, anchor in pairs]
        for param, grad in zip(params, grads, strict=True):
            param.sub_(lr * grad)
        return value, output

    return step


def _compile(step: Step) -> Step:
    """Compile when first called; compiled code is kept in the user's cache."""
    home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    cache = home / "fedloom" / "torchinductor"
    with contextlib.suppress(OSError):  # then torch's own folder is used
        cache.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault(_CACHE, str(cache))
    options: dict[str, str | int | bool | Callable[..., Any]] = {
        "fallback_random": True,  # dropout draws the same numbers as uncompiled
        "compile_threads": 1,  # no pool of compiler processes beside the workers
    }
    compiled: Step = torch.compile(step, fullgraph=True, dynamic=False, options=options)
    return compiled
