"""Ready metrics are those of scikit-learn, also with ties, few examples and missing classes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from fedloom.protocol.errors import UsageError
from fedloom.simulation import metrics


@st.composite
def scored(draw):
    """Scores with many ties, and targets."""
    classes, size = draw(st.integers(2, 4)), draw(st.integers(1, 30))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    outputs = rng.integers(-2, 3, (size, classes)).astype(np.float32)
    return torch.from_numpy(outputs), torch.from_numpy(rng.integers(0, classes, size))


@given(scored())
def test_scikit_learn_finds_the_same(case):
    outputs, targets = case
    predicted = outputs.argmax(1)
    assert metrics.accuracy(outputs, targets) == pytest.approx(accuracy_score(targets, predicted))
    expected = f1_score(targets, predicted, average="macro", zero_division=0)
    assert metrics.f1(outputs, targets) == pytest.approx(expected)
    found = metrics.auc(outputs, targets)
    if len(targets.unique()) < outputs.shape[1]:
        assert found is None
        return
    scores = outputs[:, 1] - outputs[:, 0]
    if outputs.shape[1] > 2:
        scores = outputs.double().softmax(1)
    assert found == pytest.approx(roc_auc_score(targets, scores, multi_class="ovr"))


def test_perplexity_of_equal_scores_is_the_number_of_classes():
    """Places without a class do not count; huge losses do not overflow."""
    outputs = torch.zeros(2, 5, 3)
    targets = torch.tensor([[0, 1, -100], [4, -100, -100]])
    assert metrics.perplexity(outputs, targets) == pytest.approx(5)
    outputs[0, 0, 0] = -1e6
    assert metrics.perplexity(outputs, targets) == 1e100
    assert metrics.perplexity(outputs, torch.full((2, 3), -100)) is None


def test_groups_have_their_own_values_and_a_gap():
    outputs = torch.eye(4)
    targets = torch.tensor([0, 1, 2, 0])
    grouped = metrics.by_group(metrics.accuracy, ["old", "old", "young", "young"])
    assert grouped(outputs, targets) == {"old": 1.0, "young": 0.5, "gap": 0.5}
    assert grouped(outputs[:3], targets[:3]) is None


def test_regression_is_refused():
    with pytest.raises(UsageError, match="class numbers"):
        metrics.f1(torch.zeros(3, 1), torch.zeros(3, 1))
