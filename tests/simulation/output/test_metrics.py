"""The clients' metrics in a round's record, in a simulation and on a server."""

import csv
import json

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation.api import simulate
from fedloom.simulation.output.metrics import from_line, to_line
from fedloom.simulation.wire.harness import over_the_wire
from support.experiments import experiment, population

ASKED = {"quantiles": [0.0, 0.5, 1.0], "bins": 3, "per_client": True}


@pytest.mark.long
def test_a_record_has_the_requested_metrics(tmp_path):
    described = experiment(rounds=2, goal=4, metrics=ASKED, data=population(held_out=2))
    result = simulate(described, show=False, out=tmp_path / "out")
    record = result.records[0]
    clients = record.spread["training"]["clients"]
    losses = sorted(client["values"]["loss"] for client in clients.values())
    assert len(losses) == record.accepted == 4
    known = record.spread["training"]["quantiles"]["loss"]
    assert (known["0"], known["1"]) == (losses[0], losses[-1])
    assert sum(record.spread["evaluation"]["histograms"]["loss"]["counts"]) == 4
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["spread"] == json.loads(json.dumps(record.spread))
    assert from_line(to_line(record)) == record
    with (tmp_path / "out" / "metrics.csv").open(newline="") as file:
        row = next(csv.DictReader(file))
    assert float(row["training.loss.q0.5"]) == known["0.5"]
    assert (tmp_path / "out" / "plots" / "loss-over-clients.png").exists()


def test_metrics_can_be_switched_off():
    on, off = (
        simulate(experiment(rounds=2, metrics={"enabled": enabled}), show=False)
        for enabled in (True, False)
    )
    assert on.digest == off.digest
    assert on.records[0].spread.keys() == {"training"}
    for record in off.records:
        assert (record.training, record.evaluation, record.spread) == ({}, {}, {})
        assert record.examples > 0


def test_invalid_metric_settings_are_refused():
    with pytest.raises(UsageError, match=r"Unknown setting 'metrics\.quantile'"):
        experiment(metrics={"quantile": [0.5]})
    with pytest.raises(UsageError, match="quantiles from 0 to 1"):
        experiment(metrics={"quantiles": [2]})


@pytest.mark.long
@pytest.mark.e2e
def test_a_server_records_the_same_metrics():
    described = experiment(
        kernel="resident",
        data=population(sizes=(9, 12, 5), held_out=2),
        cohort={"goal": 3, "quorum": 3},
        rounds=1,
        metrics=ASKED,
    )
    here = simulate(described, show=False)
    there = over_the_wire(described, show=False)
    assert there.digest == here.digest
    for ours, theirs in zip(here.records, there.records, strict=True):
        assert theirs.spread == ours.spread
        assert theirs.evaluation == ours.evaluation
    assert here.records[0].spread["training"]["clients"].keys() == set(described.population.names)
