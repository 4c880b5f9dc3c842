"""A simulation and a real server refuse the same metrics, in the same words."""

from dataclasses import replace

import numpy as np
import pytest

from fedloom.simulation.api import simulate
from support.agents import Adder, played, result, submit
from support.curve_client import Counter
from support.experiments import experiment, population

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SETTINGS = {
    "rounds": 1,
    "evaluate": True,
    "weighting": "uniform",
    "cohort": {"goal": 3, "quorum": 2, "deadline_s": 3600.0},
}
NAMES = ["client-000", "client-001", "client-002"]
WORDS = {
    "nan": "Expected a finite metric 'score', got nan.",
    "-inf": "Expected a finite metric 'score', got -inf.",
    "1.1e100": "Expected metrics of at most 1e+100, got 1.1e+100 for 'score'.",
    "1e100": "",
}


class Scored(Adder):
    """Adds its number plus 1; client-001 measures what the test wants, in one of its two ways."""

    def __init__(self, name, value, way):
        super().__init__(step=1.0 + int(name[-1]))
        self.value = value if name == NAMES[1] else 1.0
        self.way = way

    def _of(self, way):
        return {"score": self.value if way == self.way else 1.0}

    def train(self, params, task):
        new, count, _ = super().train(params, task)
        return new, count, self._of("train")

    def evaluate(self, params, task):
        return 4, self._of("evaluate")


@pytest.mark.parametrize("way", ["train", "evaluate"])
@pytest.mark.parametrize("value", WORDS)
def test_metrics_are_refused_alike(tmp_path, value, way):
    """The same clients count, so the models are equal."""

    def make(name):
        return Scored(name, float(value), way)

    described = experiment(client=make, data=population(sizes=(5, 5, 5), test=0), **SETTINGS)
    assert described.population.names == NAMES
    here = simulate(replace(described, model=Counter), show=False)

    async def scenario(federation, agents):
        for name in NAMES:
            await agents.start(name, make(name))
        run = await submit(federation, {"w": np.zeros(4, np.float32)}, **SETTINGS)
        await federation.ended(run)
        members = federation.ledger.members(run, 1)
        return result(federation, run)["w"], {m.client: (m.phase, m.reason) for m in members}

    model, members = played(tmp_path, scenario)
    refused = {name: reason for name, (phase, reason) in members.items() if phase == "refused"}
    record = here.records[0]  # the second only evaluates the model
    assert here.params["w"].tolist() == model.tolist()
    if WORDS[value]:
        assert list(refused) == [NAMES[1]]
        assert WORDS[value] in refused[NAMES[1]]
        assert WORDS[value] in record.reason
        assert record.accepted == 2
        assert model.tolist() == [2.0] * 4
    else:
        assert refused == {}
        assert record.accepted == 3
