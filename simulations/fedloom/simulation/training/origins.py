"""What a simulation was made of besides settings: initial values, examples and the user's code.

A simulation that resumes with others would end with a result that no run from the start gives, so
their digests are in the checkpoint. Functions that only observe rounds (`on_round`, `on_client`)
are not among them.
"""

import sys
from collections.abc import Mapping

import torch

from fedloom.client.torch import modules
from fedloom.simulation.caller_state import preserved
from fedloom.simulation.experiment import Experiment
from fedloom.simulation.training.code_digest import arrays_digest, code_digest
from fedloom.strategies import STRATEGIES

MODEL, EXAMPLES = "the initial values of the model", "the examples"
_PYTHON = "Python"
_CODE = "the code of "


def origins(experiment: Experiment) -> dict[str, str]:
    """The digest of each origin, by its name in words; changes no random state."""
    with preserved():  # the next model that the experiment makes has the same values
        torch.set_num_threads(1)  # forked workers inherit no thread pool
        model = experiment.model()
    people = experiment.population
    held = [people.examples] if people.test is None else [people.examples, people.test]
    arrays = [array for examples in held for array in (examples.x, examples.y)]
    code: dict[str, object] = {
        "the model": model,
        "the loss": experiment.loss,
        "the optimizer": experiment.optimizer,
        "the clients": experiment.client,
        "the strategy": STRATEGIES.get(str(experiment.spec.strategy.get("name"))),
        "data.transform": None if people.transform is None else people.transform.steps,
        **{f"test.metrics.{name}": metric for name, metric in experiment.metrics.items()},
    }
    if experiment.evaluate is not None:
        code["evaluate"] = experiment.evaluate
    return {
        MODEL: arrays_digest(list(modules.parameters(model).values())),
        EXAMPLES: arrays_digest(arrays),
        _PYTHON: f"{sys.version_info.major}.{sys.version_info.minor}",
        **{_CODE + name: code_digest(found) for name, found in code.items()},
    }


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The names of the origins that differ.

    Origins that only one of both has are not compared: metrics may be added and left out. Neither
    is code of another version of Python, whose digests differ without a change.

    Args:
        before: of the first rounds; empty if they are unknown.
        now: of this process.
    """
    same_python = before.get(_PYTHON) == now[_PYTHON]
    compared = [n for n in now if n in before and (same_python or not n.startswith(_CODE))]
    return [name for name in compared if name != _PYTHON and before[name] != now[name]]
