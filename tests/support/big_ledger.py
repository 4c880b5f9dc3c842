"""A ledger as large as it may become: rounds, clients and updates by bulk, without a server.

By hand: python tests/support/big_ledger.py DIRECTORY
"""

import argparse
import random
import sys
from pathlib import Path

from fedloom.server.ledger import Ledger, tables
from fedloom.server.ledger.member_summary import summarize
from fedloom.server.ledger.privacy.populations import add_to_population
from fedloom.server.ledger.rows import SessionRow

RUN = "large-000000"
START = 1.7e9
ROUND_S = 60.0
ENDS = ("reported", "reported", "reported", "reported", "failed", "late", "lost", "declined")
SITES = ("north", "south", "east", "west")


def name_of(index):
    return f"ward-{index:05d}"


def clients_of(num_clients, generator):
    """Rows of clients, their certificates, their tokens and their labels."""
    rows = {"clients": [], "certificates": [], "tokens": [], "labels": []}
    for index in range(num_clients):
        name = name_of(index)
        held = generator.random() < 0.01
        rows["clients"].append({
            "name": name, "status": "active", "enrolled_at": START, "seen_at": START + index,
            "version": generator.choice(["0.9.0", "1.0.0"]),
            "hold": "quarantine" if held else None, "hold_reason": "odd" if held else None,
        })  # fmt: skip
        rows["certificates"].append(
            {"serial": f"{index:x}", "client": name, "issued_at": START, "not_after": 4e9}
        )
        rows["tokens"].append({
            "id": f"t{index}", "secret_hash": "x", "client": name, "created_at": START,
            "expires_at": 4e9, "used_at": START,
        })  # fmt: skip
        rows["labels"].append(
            {"client": name, "name": "site", "own": True, "value": generator.choice(SITES)}
        )
    return rows


def round_rows(number, members, generator):
    """The rows of one committed round."""
    opened = START + number * ROUND_S
    cohorts, updates, seen = [], [], []
    for client in members:
        end = generator.choice(ENDS)
        took = opened + generator.uniform(0, 1)
        done = took + generator.uniform(1, 40)
        row = {
            "run": RUN, "round": number, "client": client, "phase": end, "reason": "",
            "offered_at": opened, "took_at": took, "download_began_at": took,
            "download_ended_at": took + 1, "training_began_at": took + 1,
            "upload_began_at": done - 1 if end == "reported" else None,
            "upload_ended_at": done if end == "reported" else None, "ended_at": done,
            "bytes_down": 4_000_000, "bytes_up": 4_000_000 if end == "reported" else 0,
            "retries": int(generator.random() < 0.1), "code": None,
        }  # fmt: skip
        cohorts.append(row)
        seen.append(SessionRow(**row, accepted_at=done if end == "reported" else None))
        if end == "reported":
            loss = 2 / (1 + number / 100) + generator.gauss(0, 0.1)
            updates.append({
                "run": RUN, "round": number, "client": client, "identity": "i", "file": "f",
                "size_bytes": 4_000_000, "weight": 60.0, "norm": abs(generator.gauss(1, 0.2)),
                "training": {"num_examples": 60, "values": {"loss": loss, "accuracy": 0.9}},
                "evaluation": {}, "accepted_at": done, "counts_in": number, "staleness": 0,
            })  # fmt: skip
    values = {"loss": 2 / (1 + number / 100), "accuracy": 1 - 1 / (1 + number / 50)}
    committed = {
        "run": RUN, "number": number, "kind": "train", "state": "committed", "reason": "",
        "opened_at": opened, "deadline_at": opened + 600, "closed_at": opened + 50,
        "model_in": f"{number - 1:064x}", "model_out": f"{number:064x}",
        "training": {"num_examples": 60 * len(updates), "values": values},
        "evaluation": {"num_examples": 60 * len(updates), "values": values},
        "summary": summarize(seen, over=True),
    }  # fmt: skip
    return committed, cohorts, updates


def fill(directory, *, num_rounds=1000, cohort=200, num_clients=10_000, spec=None):
    """Make a ledger of one finished run in a state directory."""
    generator = random.Random(7)
    ledger = Ledger.in_directory(Path(directory))
    with ledger._write() as connection:
        for table, rows in clients_of(num_clients, generator).items():
            connection.execute(getattr(tables, table).insert(), rows)
        run = {
            "id": RUN, "name": "large", "spec": spec or {"rounds": num_rounds, "cohort": {}},
            "state": "finished", "reason": "", "created_at": START, "ended_at": START + 1e6,
            "model": f"{num_rounds:064x}", "strategy_state": None, "committed": num_rounds,
            "last_round": num_rounds,
        }  # fmt: skip
        connection.execute(tables.runs.insert(), [run])
        for number in range(1, num_rounds + 1):
            members = [name_of(i) for i in generator.sample(range(num_clients), cohort)]
            row, cohorts, updates = round_rows(number, members, generator)
            connection.execute(tables.rounds.insert(), [row])
            connection.execute(tables.cohorts.insert(), cohorts)
            add_to_population(connection, RUN, set(members))
            connection.execute(tables.updates.insert(), updates)
            connection.execute(tables.models.insert(), [{
                "run": RUN, "round": number, "digest": row["model_out"], "size_bytes": 4_000_000,
                "created_at": row["closed_at"], "state": "null",
            }])  # fmt: skip
            connection.execute(tables.refusals.insert(), [
                {"at": row["opened_at"], "client": client, "run": RUN, "round": number,
                 "code": "not_finite", "message": "Expected finite values.", "detail": ""}
                for client in members[:5]
            ])  # fmt: skip
    ledger.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    fill(arguments.directory)
    sys.stdout.write(f"{arguments.directory / 'ledger.sqlite'}\n")
