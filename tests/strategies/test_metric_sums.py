"""Sums of metrics: their means are those of all clients, however these are grouped."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedloom.strategies import MetricsSettings, summarize
from fedloom.strategies.metrics import weighted_mean
from fedloom.strategies.summed_metrics import SummedMetrics, metric_sums, summed

REPORTS = st.lists(
    st.tuples(
        st.integers(0, 1000),
        st.dictionaries(st.sampled_from("abc"), st.floats(-1e100, 1e100), max_size=3),
    )
)


@given(REPORTS, st.integers(0, 10), st.sampled_from([None, 7.5, 100.0]))
def test_means_do_not_depend_on_the_groups(reports, cut, limit):
    """Bit for bit those of the reports themselves."""
    settings = MetricsSettings(max_weight=limit)
    parts = [metric_sums(reports[:cut], settings), metric_sums(reports[cut:], settings)]
    assert summed(parts).means() == weighted_mean(reports, limit)
    assert summed(parts) == metric_sums(reports[::-1], settings)


@given(REPORTS, st.integers(0, 10), st.sets(st.floats(-1e100, 1e100), min_size=2))
def test_extremes_and_counts_are_those_of_a_summary(reports, cut, edges):
    """However clients are grouped; of a summary of all clients the rest is left out."""
    settings = MetricsSettings(quantiles=[0, 1], edges={"a": sorted(edges), "z": [0, 1]})
    parts = [metric_sums(reports[:cut], settings), metric_sums(reports[cut:], settings)]
    found = summed(parts).summary(settings)
    whole = summarize([(f"{n}", *each) for n, each in enumerate(reports)], settings)
    whole.pop("disagree", None)
    for of in whole.get("quantiles", {}).values():
        for share in ("0.25", "0.5", "0.75"):
            del of[share]
    assert found == whole


def test_a_sum_takes_few_numbers():
    """A thousand clients with one metric give two or three numbers."""
    values = np.random.default_rng(1).normal(0, 1, 1000)
    sums = metric_sums(((3, {"loss": v}) for v in values.tolist()), MetricsSettings())
    assert sums.num_examples == 3000
    assert max(map(len, sums.values["loss"])) <= 3


def test_no_examples_give_no_metrics():
    """As in the means of clients."""
    assert metric_sums([(0, {"loss": 1.0})], MetricsSettings(quantiles=[1])) == SummedMetrics()
