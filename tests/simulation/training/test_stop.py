"""Goals of [stop], in both directions."""

from dataclasses import replace

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation import metrics
from fedloom.simulation.api import simulate
from fedloom.simulation.config import load
from fedloom.simulation.training.stop import check_stop, reaches
from support.experiments import experiment

FILE = """
rounds = 1
cohort.goal = 2
train = {epochs = 1, batch_size = 4, learning_rate = 0.1}
data = {source = "synthetic", clients = 4}
model = {name = "logistic"}
[stop]
"""


@pytest.mark.parametrize(
    ("stop", "below", "above"),
    [
        ({"perplexity": 20}, True, False),
        ({"test_loss": 20}, True, False),
        ({"macro_f1": 20}, False, True),
        ({"mine": {"at_most": 20}}, True, False),
        ({"mine": {"at_least": 20}}, False, True),
        ({"accuracy/gap": {"at_most": 20}}, True, False),
        ({"loss": {"at_least": 20}}, False, True),
    ],
)
def test_a_goal_has_a_direction(stop, below, above):
    """By the end of its name, or as the settings say; the value itself reaches it."""
    check_stop(stop)
    (name,) = stop
    values = (19.0, 20.0, 21.0, float("nan"))
    found = [reaches(stop, {name: value, "loss_of_another": 0.0}) for value in values]
    assert found == [below, True, above, False]
    assert not reaches(stop, {})


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ({"mine": 3}, "unknown. Write mine = { at_least = 3 } or mine = { at_most = 3 }"),
        ({"mine": {"at_most": 1, "at_least": 0}}, "Expected stop.mine as a number, or a table"),
        ({"mine": {"below": 1}}, "mine = { at_most = 20 }"),
        ({"mine": {}}, "got {}"),
        ({"mine": {"at_most": "x"}}, "stop.mine.at_most"),
        ({"loss": float("nan")}, "finite"),
        ({"accuracy": 97}, "0 < stop.accuracy <= 1"),
    ],
)
def test_other_goals_are_refused(stop, said):
    with pytest.raises(UsageError) as caught:
        check_stop(stop)
    assert said in str(caught.value)
    with pytest.raises(UsageError) as caught:
        experiment(stop=stop)
    assert said in str(caught.value)


def test_a_file_says_the_direction(tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text(FILE + "loss = {at_least = 2}")
    assert load(file).stop == {"loss": {"at_least": 2}}
    file.write_text(FILE + "mine = 2")
    with pytest.raises(UsageError, match=r"Write mine = \{ at_least"):
        load(file)


def test_perplexity_ends_a_run_when_it_is_low_enough():
    """It fell from above the goal, so the first round is not the last."""
    made = replace(experiment(rounds=50), metrics={"perplexity": metrics.perplexity})
    whole = [record.test["perplexity"] for record in simulate(made, show=False).records]
    goal = whole[4]
    records = simulate(replace(made, stop={"perplexity": goal}), show=False).records
    found = [record.test["perplexity"] for record in records]
    first = next(n for n, value in enumerate(whole) if value <= goal)
    assert first > 0
    assert found == whole[: first + 1]
