"""Tasks for clients that a test calls directly."""

from fedloom.client import Kind, Task, Weighting
from fedloom.client.training.client_rule import RuleContext
from fedloom.strategies import Adapters, Personal, Plain, RoundSettings


def task(
    *, rule=None, seed=1, round_=1, training_round=0, kind=Kind.TRAIN, config=None, personal=None,
    adapters=None, **settings,
):  # fmt: skip
    """A task with these settings of the training."""
    if "steps" not in settings:
        settings = {"epochs": 1, **settings}
    defaults = {"epochs": None, "steps": None, "batch_size": 8, "learning_rate": 0.1}
    return Task(
        run="r",
        round=round_,
        training_round=training_round,
        client="a",
        kind=kind,
        settings=RoundSettings(**{**defaults, **settings}),
        rule=rule or Plain(),
        config=config or {},
        seed=seed,
        deadline_s=60.0,
        weighting=Weighting.EXAMPLES,
        local=RuleContext(personal=personal or Personal(), adapters=adapters or Adapters()),
    )
