"""The study of personalised models: its committed results, and how a cell is measured."""

import pytest

from fedloom.simulation.studies import personalisation, study

RESULTS = study.StudyResults.read(study.COMMITTED / "personalisation")
DIGITS, TURNED = personalisation.CONDITIONS


def entry(row, column):
    """Accuracy of a cell over its seeds."""
    return RESULTS.entry(row, column, "accuracy")


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ("FedRep", DIGITS),
        ("Ditto (λ = 0.1)", DIGITS),
        ("APFL (α = 0.5)", DIGITS),
        ("IFCA (4 models)", TURNED),
    ],
)
def test_a_personalised_model_beats_the_shared_model(row, column):
    """On the clients' own held-out examples, by more than the spread."""
    own, plain = entry(row, column), entry("FedAvg", column)
    assert own.mean - own.spread > plain.mean + plain.spread


def test_a_cell_is_measured_with_each_clients_own_model():
    """A small cell: two rounds, the head kept by the clients."""
    cell = personalisation.study(quick=True).cells[0]
    settings = {**cell.settings, "rounds": 2, "personal": {"keep": ["head.*"]}}
    settings["data"] = {**settings["data"], "clients": 8}
    settings["cohort"] = {"goal": 4}
    run = personalisation.measure(study.Cell(row="x", column="y", settings=settings), 0)
    assert 0 < run.values["accuracy"] <= 1
    assert len(run.curve) == 3
