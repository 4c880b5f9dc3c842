"""The study of adapters: its committed results, its model, and how a cell is measured."""

import numpy as np
import pytest
import torch

from fedloom.simulation.studies import adapters, study
from fedloom.simulation.studies import low_rank_gpt as gpt
from fedloom.strategies.adapters.settings import layers, with_rests

RESULTS = study.StudyResults.read(study.COMMITTED / "adapters")
FACTORS, SENT = "factors (FedIT)", "product, rest sent (FedEx-LoRA)"


@pytest.mark.parametrize("column", adapters.RANKS)
def test_products_are_ahead_of_factors_with_each_seed(column):
    """At equal ranks, and where factors can only use the least."""
    one, other = (RESULTS.entry(row, column, "loss") for row in (SENT, FACTORS))
    assert len(one.values) == len(other.values) == 3
    assert all(a < b for a, b in zip(one.values, other.values, strict=True))


def test_committed_runs_are_of_the_study():
    """Each cell has three, of today's settings."""
    for cell in adapters.study().cells:
        assert sum(run.is_of(cell) for run in RESULTS.runs) == 3, cell


@pytest.mark.parametrize("rank", [1, 3])
def test_a_device_of_any_rank_has_the_whole_function(rank):
    """Its outputs are those of weights to which all of the model's adapters are added."""
    rng = np.random.default_rng(0)
    start = with_rests(adapters._start(gpt.adapters(3, 0, rest=False)))
    params = {n: rng.normal(size=a.shape).astype(np.float32) / 8 for n, a in start.items()}
    model, whole = gpt.TinyGpt(), gpt.TinyGpt()
    whole.load_state_dict(model.state_dict())
    gpt.put(model, params, rank)
    modules = whole.adapted()
    for each in layers(params):
        added = gpt.SCALE * (params[each.b] @ params[each.a] + params[each.rest])
        with torch.no_grad():
            modules[each.name].base.weight += torch.from_numpy(added)
    texts = gpt.client_texts(0, 0)[:4]
    with torch.no_grad():
        torch.testing.assert_close(model(texts[:, :-1]), whole(texts[:, :-1]))


@pytest.mark.long
@pytest.mark.parametrize("row", adapters.METHODS)
def test_a_cell_is_measured(row):
    """One round of mixed ranks lowers the loss of the base model."""
    settings = adapters._settings(row, adapters.MIXED, 1)
    cell = study.Cell(row=row, column=adapters.MIXED, settings=settings)
    trained = adapters.measure(cell, 0).values["loss"]
    base = adapters.measure(study.Cell(row=adapters.BASE, column="", settings=settings), 0)
    assert trained < base.values["loss"]
