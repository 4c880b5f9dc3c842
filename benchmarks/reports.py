"""What the server holds in memory for each client of a closing round, beside the sum.

    python benchmarks/reports.py [--clients 2000]

Updates with metrics are accepted into a ledger on disk. Then the round closes: the rows of updates
are read, their metrics are summarized, and the records of the members are stored. Measured: the
bytes that Python allocates at the same time in each of the two steps, at most, for each client.
Prints a table and writes out/reports.json.
"""

import argparse
import random
import tempfile
import time
import tracemalloc
from dataclasses import fields
from pathlib import Path

from deployment import report

from fedloom.server.ledger import AcceptedUpdate, Ledger
from fedloom.server.rounds.member_records import Record
from fedloom.strategies.metrics import MetricsSettings, Summary


def name_of(place):
    return f"client-{place:06d}"


def fill(ledger, clients, num_metrics):
    """A round with an update of each client, which measured both in training and evaluation."""
    draw = random.Random(0)
    run = {"id": "run", "name": "run", "spec": {}, "state": "running", "reason": "", "model": "m"}
    ledger.add_run(run, 100)
    row = {
        "run": "run", "number": 1, "kind": "train", "opened_at": 0.0, "deadline_at": 1e9,
        "model_in": "m",
    }  # fmt: skip
    ledger.open_round(row, [name_of(place) for place in range(clients)])

    def measured():
        values = {f"metric-{place}": draw.random() for place in range(num_metrics)}
        return {"num_examples": draw.randrange(1, 10_000), "values": values}

    for place in range(clients):
        name = name_of(place)
        update = AcceptedUpdate(
            run="run", round=1, client=name, identity=f"{place:064x}", file=f"run.1.{name}",
            size_bytes=1, weight=1.0, norm=1.0, training=measured(), evaluation=measured(),
        )  # fmt: skip
        ledger.accept(update, clients)


def summarized(ledger):
    """Close the round, as a commit does."""
    rows = ledger.close_round("run", 1)
    training, evaluation = Summary(MetricsSettings()), Summary(MetricsSettings())
    for row in ledger.reported_metrics("run", 1):
        training.add(row.client, **row.training)
        evaluation.add(row.client, **row.evaluation)
    assert len(rows)
    assert training.values()
    assert evaluation.values()


def recorded(ledger, clients):
    """Store the record of each member, with every time in it."""
    times = {field.name: time.time() for field in fields(Record) if field.name.endswith("_at")}
    members = {name_of(place): Record(**times) for place in range(clients)}
    ledger.keep_records("run", {1: members}, over=True)


def peak_bytes(call, *arguments):
    tracemalloc.start()
    call(*arguments)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--clients", type=int, default=2_000)
    clients = arguments.parse_args().clients
    rows = []
    for num_metrics in (2, 8, 32):
        with tempfile.TemporaryDirectory() as folder:
            ledger = Ledger.in_directory(Path(folder))
            fill(ledger, clients, num_metrics)
            peaks = peak_bytes(summarized, ledger), peak_bytes(recorded, ledger, clients)
            ledger.close()
        rows.append((2 * num_metrics, *(peak // clients for peak in peaks)))
    columns = ("metrics of a client", "rows and metrics, bytes", "records, bytes")
    report("reports", columns, rows, clients=clients)


if __name__ == "__main__":
    main()
