"""The default kernel: any PyTorch model, trained step by step like the deployed client.

Invariant: on one thread an update has the same bits as that of `fedloom.client.torch.TorchClient`
for the same model, examples, task and seed.
"""

from dataclasses import fields
from typing import ClassVar

from torch import nn

from fedloom.client.agent.task_run import differences
from fedloom.client.torch import local_training, loop
from fedloom.client.torch.adapters import scales
from fedloom.client.torch.narrow import Narrow, narrowed
from fedloom.client.torch.stopping import never
from fedloom.client.training.adapter_scales import check_scales
from fedloom.client.training.client_rule import RuleContext
from fedloom.simulation.kernels.base import ClientJob, RoundTask, asked_of
from fedloom.simulation.kernels.one_by_one import Fitted, OneByOne
from fedloom.strategies import PartialWork


class Resident(OneByOne):
    """Trains with autograd and any optimizer."""

    follows: ClassVar[frozenset[str]] = frozenset(
        {
            "engine.precision",
            *("personal.keep", "personal.name", "adapters.aggregate", "adapters.scale"),
            *(field.name for field in fields(PartialWork)),
        }
    )

    def check(self, task: RoundTask) -> None:
        """As `OnModel.check`; also of the adapters' scales."""
        super().check(task)
        check_scales(task.adapters, scales(self.model))

    def fit(self, job: ClientJob, task: RoundTask, local: RuleContext) -> Fitted:
        """Train on the batches that the deployed client would draw."""
        if not (task.settings.special or task.adapters.special):
            return self._train(self.model, job, task, local), self.state.parts()
        asked = asked_of(task, job, self.names[job.client], local)
        chosen, width = asked.tensors(self.state.params), asked.width()
        narrow = Narrow(self.model) if width == 1 else narrowed(self.model, width)
        with local_training.frozen(narrow.module, self.state.params.keys() - chosen):
            totals = self._train(narrow.module, job, task, local)
        sent = narrow.parameters(chosen & self.state.sent)
        return totals, list(differences(sent, self.state.params, asked))

    def _train(
        self,
        module: nn.Module,
        job: ClientJob,
        task: RoundTask,
        local: RuleContext,
        optimizer: loop.MakeOptimizer | None = None,
    ) -> loop.MetricSums:
        """Train a module on a client's examples; default: the kernel's optimizer."""
        asked = local_training.Asked(
            settings=task.settings,
            rule=task.rule,
            local=local,
            seed=job.seed,
            should_stop=never,
            most_steps=job.most_steps,
        )
        examples = self.holdings.source(job.client)
        return local_training.train(
            module, examples, self.loss, optimizer or self.optimizer or loop.SGD, asked
        )
