"""The choice of a client's model among several: the one with the least loss on its examples.

Source: Ghosh et al. 2020, https://arxiv.org/abs/2006.04088, Algorithm 1, line 7.
"""

import math

from torch import nn

from fedloom.client.torch import batches, loop, modules
from fedloom.client.training.client_rule import RuleContext
from fedloom.strategies import ClientRule, Params


def settle_on(  # noqa: PLR0917 - all parts of an evaluation
    module: nn.Module,
    data: batches.ExampleSource,
    loss: loop.Loss,
    params: Params,
    rule: ClientRule,
    local: RuleContext,
) -> None:
    """Load the model with the least mean loss on the examples; the first one of several.

    Args:
        module: the model is loaded into it.
        data: for training.
        loss: mean loss of a batch.
        params: the first of the models.
        rule: with several models.
        local: has the other models, and keeps the choice.
    """
    if local.cluster is None:
        losses = []
        for number in range(len(rule.groups)):
            # One after another, because all of them may not fit into memory.
            modules.load(module, local.model(number, params, rule), partial=True)
            value = loop.measure(module, batches.in_order(data), loss).metrics()["loss"]
            losses.append(math.inf if math.isnan(value) else value)
        local.cluster = losses.index(min(losses))
    modules.load(module, local.model(local.cluster, params, rule), partial=True)
