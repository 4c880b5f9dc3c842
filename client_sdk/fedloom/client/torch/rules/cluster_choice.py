"""Which of several models a client works on: the one that fits its examples best.

Source: Ghosh et al. 2020, https://arxiv.org/abs/2006.04088, Algorithm 1, line 7.
"""

import math

from torch import nn

from fedloom.client.torch import batches, loop, modules
from fedloom.client.training.client_rule import RuleContext
from fedloom.strategies import ClientRule, Params


def settle_on(  # noqa: PLR0917 - what a choice follows from
    module: nn.Module,
    data: batches.ExampleSource,
    loss: loop.Loss,
    params: Params,
    rule: ClientRule,
    local: RuleContext,
) -> None:
    """Load the model of least mean loss on the examples, of equal ones the first.

    Args:
        module: gets it.
        data: to train on.
        loss: mean loss of a batch.
        params: the first of the models.
        rule: by which there are several.
        local: has the others; told which one it is, and asked where it has been told.
    """
    if local.cluster is None:
        losses = []
        for number in range(len(rule.groups)):
            # One after another: all of them may not fit into memory.
            modules.load(module, local.model(number, params, rule), partial=True)
            value = loop.measure(module, batches.in_order(data), loss).metrics()["loss"]
            losses.append(math.inf if math.isnan(value) else value)
        local.cluster = losses.index(min(losses))
    modules.load(module, local.model(local.cluster, params, rule), partial=True)
