"""Ledgers of earlier versions: migrated completely, and usable afterwards."""

import json
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa

from fedloom.protocol.errors import UsageError
from fedloom.server.ledger import AcceptedUpdate, Ledger, migrations
from fedloom.server.ledger.tables import meta
from fedloom.server.planning.spec import parse

BEFORE = Path(__file__).with_name("ledger_before_versions.sql")
"""Two runs as they were kept before ledgers had versions; one has its third round open."""


@pytest.fixture
def old(tmp_path):
    """A state directory with a ledger from before schema versions."""
    database = sqlite3.connect(tmp_path / "ledger.sqlite")
    database.executescript(BEFORE.read_text())
    database.close()
    return tmp_path


def shape(ledger):
    """Tables, columns and indexes of the database."""
    inspector = sa.inspect(ledger._engine)
    return {
        table: (
            {column["name"] for column in inspector.get_columns(table)},
            {index["name"] for index in inspector.get_indexes(table)},
        )
        for table in inspector.get_table_names()
    }


def test_a_migrated_ledger_has_the_schema_of_a_new_one(old, tmp_path_factory):
    """Tables, columns and indexes."""
    forward = Ledger.in_directory(old)
    fresh = Ledger.in_directory(tmp_path_factory.mktemp("fresh"))
    assert shape(forward) == shape(fresh)
    assert set(shape(forward)) == set(meta.tables)


def test_a_migrated_ledger_continues(old):
    """Its open round accepts the missing update, and an accepted one still counts once."""
    ledger = Ledger.in_directory(old)
    assert [(r.number, r.state) for r in ledger.list_rounds("digits")] == [
        (1, "committed"),
        (2, "committed"),
        (3, "reporting"),
    ]
    known = AcceptedUpdate(
        run="digits", round=3, client="bob", identity="bob", file="3.bob", size_bytes=10,
        weight=1.0, norm=0.5,
    )  # fmt: skip
    assert ledger.accept(known, 10) is False
    assert ledger.last_counted("digits", "bob") == 2


def test_an_old_run_can_be_rolled_back_to_stored_states(old):
    """Only the last model of each run has one; the message for others says what to do."""
    ledger = Ledger.in_directory(old)
    assert {p.round: p.state for p in ledger.points("digits")} == {
        0: None,
        1: None,
        2: '{"step": 2}',
    }
    assert [p.state for p in ledger.points("other")] == ['{"step": 0}']
    with pytest.raises(UsageError, match="submit a new run from its model digits-1"):
        ledger.roll_back("digits", 1)


def test_updates_from_before_buffers_count_in_their_round(old):
    with sqlite3.connect(old / "ledger.sqlite") as database:
        database.execute("UPDATE updates SET counts_in = NULL")
    ledger = Ledger.in_directory(old)
    assert [u.client for u in ledger.accepted("digits", 1)] == ["alice", "bob"]
    assert [r.accepted for r in ledger.list_rounds("digits")] == [2, 2, 2]


def test_old_runs_keep_their_sums_and_stay_valid(old):
    """Settings that are gone are dropped, others stay; the sums keep their grid."""
    spec = {
        "rounds": 3,
        "train": {"epochs": 1, "learning_rate": 0.1, "batch_size": 8},
        "cohort": {"goal": 4, "quorum": 2},
        "aggregation": {"name": "geometric_median", "smoothing": 1e-6, "iterations": 5},
    }
    private = {
        "rounds": 3,
        "train": spec["train"],
        "cohort": {"goal": 4, "quorum": 2},
        "privacy": {
            "mechanism": "dp_fedavg", "clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-3,
            "sampling": "poisson", "population": 40,
        },
    }  # fmt: skip
    with sqlite3.connect(old / "ledger.sqlite") as database:
        change = "UPDATE runs SET spec = ? WHERE id = ?"
        database.execute(change, (json.dumps(spec), "digits"))
        database.execute(change, (json.dumps(private), "other"))
    ledger = Ledger.in_directory(old)
    kept, sampled = (parse(ledger.run(run).spec) for run in ("digits", "other"))
    assert (kept.sum_bits, sampled.sum_bits) == (64, 64)
    assert kept.aggregation == {"name": "geometric_median", "iterations": 5}
    assert kept.cohort == spec["cohort"]
    assert sampled.cohort == {"goal": 4}
    assert sampled.privacy == private["privacy"]


def test_steps_are_done_once(old):
    """A second opening writes nothing."""
    Ledger.in_directory(old).close()
    with sqlite3.connect(old / "ledger.sqlite") as database:
        database.execute("UPDATE models SET state = 'kept' WHERE run = 'other'")
    assert [p.state for p in Ledger.in_directory(old).points("other")] == ["kept"]


def test_a_step_that_fails_leaves_the_old_ledger(old, monkeypatch):
    """The next attempt starts from the same version."""

    def breaks(_connection):
        raise RuntimeError("pulled the plug")

    steps = (*migrations.STEPS, migrations.Step(breaks, len(migrations.STEPS) + 1))
    monkeypatch.setattr(migrations, "STEPS", steps)
    before = sqlite3.connect(old / "ledger.sqlite").execute("SELECT sql FROM sqlite_master")
    before = before.fetchall()
    with pytest.raises(RuntimeError):
        Ledger.in_directory(old)
    after = sqlite3.connect(old / "ledger.sqlite").execute("SELECT sql FROM sqlite_master")
    assert after.fetchall() == before
    monkeypatch.undo()
    assert [p.round for p in Ledger.in_directory(old).points("digits")] == [0, 1, 2]


@pytest.mark.parametrize("least", ["98", "NULL"])
def test_a_newer_ledger_is_refused_with_advice(old, least):
    """Unless it says that this version reads it."""
    Ledger.in_directory(old).close()
    with sqlite3.connect(old / "ledger.sqlite") as database:
        database.execute(f"UPDATE schema_version SET version = 99, readable_from = {least}")
    with pytest.raises(UsageError, match="got version 99: a newer fedloom wrote it"):
        Ledger.in_directory(old)


def test_the_tables_compile_for_postgresql():
    """With a server available, they are created there too."""
    made = []
    engine = sa.create_mock_engine("postgresql+psycopg://", lambda sql, *_: made.append(str(sql)))
    meta.create_all(engine, checkfirst=False)
    assert sum("CREATE TABLE" in sql for sql in made) == len(meta.tables)
