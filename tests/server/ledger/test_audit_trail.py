"""The audit trail: for any change of its rows, the first wrong one is named."""

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from fedloom.server.ledger import Ledger
from fedloom.server.ledger.audit_trail import FIRST, Head, Trail, entry_hash, first_break

NUM_ENTRIES = 6


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger.in_directory(tmp_path)
    yield ledger
    ledger.close()


@pytest.fixture
def path(tmp_path, ledger):
    """The ledger's file, with a trail of six entries."""
    for number in range(1, NUM_ENTRIES + 1):
        ledger.trail.append("ann", "socket", "run.pause", f"run-{number}", {"n": number})
    return tmp_path / "ledger.sqlite"


def _rows(path):
    with sqlite3.connect(path) as database:
        database.row_factory = sqlite3.Row
        rows = [dict(row) for row in database.execute("SELECT * FROM audit ORDER BY id")]
    database.close()
    return rows


def _tamper(path, *statements):
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)
    database.close()


def test_trail_begins_at_one_and_links_every_entry(path, ledger):
    """Each entry has its own hash and that of the entry before."""
    rows = _rows(path)
    assert [row["id"] for row in rows] == [*range(1, NUM_ENTRIES + 1)]
    assert [row["previous"] for row in rows] == [FIRST, *(row["hash"] for row in rows[:-1])]
    assert ledger.trail.head() == Head(id=NUM_ENTRIES, hash=rows[-1]["hash"])
    assert json.loads(rows[2]["detail"]) == {"n": 3}
    assert first_break(rows, [ledger.trail.head()]) is None


@pytest.mark.parametrize(
    "change",
    ["at = at + 1e-6", "who = 'eve'", "how = 'token'", "action = 'run.stop'", "subject = 'x'",
     "detail = '{}'", "hash = previous", "previous = hash"],
)  # fmt: skip
def test_edited_entry_is_found(path, change):
    """With each of its fields."""
    _tamper(path, f"UPDATE audit SET {change} WHERE id = 3")
    assert first_break(_rows(path)).id == 3


def test_edited_entry_with_a_new_hash_is_found_at_the_next_link(path):
    """With all later hashes changed too, a kept head reveals it."""
    rows = _rows(path)
    head = Head(id=rows[-1]["id"], hash=rows[-1]["hash"])
    rows[2]["who"] = "eve"
    rows[2]["hash"] = entry_hash(rows[2])
    assert first_break(rows).id == 4
    for before, row in pairwise(rows[2:]):
        row["previous"] = before["hash"]
        row["hash"] = entry_hash(row)
    assert first_break(rows) is None
    assert first_break(rows, [head]).id == NUM_ENTRIES


def test_removed_entry_is_found(path):
    """At its own number."""
    _tamper(path, "DELETE FROM audit WHERE id = 1")
    assert first_break(_rows(path)).id == 1
    _tamper(path, "UPDATE audit SET id = id - 1")
    assert first_break(_rows(path)).id == 1


def test_swapped_entries_are_found(path):
    """At the first of the two."""
    _tamper(
        path,
        "UPDATE audit SET id = 100 WHERE id = 2",
        "UPDATE audit SET id = 2 WHERE id = 5",
        "UPDATE audit SET id = 5 WHERE id = 100",
    )
    assert first_break(_rows(path)).id == 2


def test_inserted_entry_is_found(path):
    """Even with a correct hash, the next entry does not follow it."""
    rows = _rows(path)
    extra = {**rows[2], "id": 3, "who": "eve"}
    extra["hash"] = entry_hash(extra)
    later = [{**row, "id": row["id"] + 1} for row in rows[2:]]
    assert first_break([*rows[:2], extra, *later]).id == 4


@pytest.mark.parametrize("kept", [0, 3, NUM_ENTRIES - 1])
def test_truncated_trail_is_found_by_a_kept_head(path, ledger, kept):
    """Without the head it looks intact."""
    head = ledger.trail.head()
    _tamper(path, f"DELETE FROM audit WHERE id > {kept}")
    assert first_break(_rows(path)) is None
    assert first_break(_rows(path), [head]).id == kept + 1


def test_older_head_accepts_newer_entries(path, ledger):
    head = ledger.trail.head()
    ledger.trail.append("ann", "socket", "run.stop", "run-1", {})
    assert first_break(_rows(path), [head]) is None


def test_writers_on_one_database_make_one_chain(tmp_path, path, ledger):
    """Two servers that share a database take turns."""
    other = Ledger.in_directory(tmp_path)

    def write(trail: Trail) -> None:
        for _ in range(10):
            trail.append("ann", "socket", "run.pause", "run", {})

    with ThreadPoolExecutor(2) as pool:
        [*pool.map(write, [ledger.trail, other.trail])]
    other.close()
    rows = _rows(path)
    assert len(rows) == NUM_ENTRIES + 20
    assert first_break(rows) is None


def test_text_of_unknown_peers_is_short_and_printable(tmp_path, ledger):
    """A name with line breaks must not forge a line of the log."""
    ledger.trail.append("a\nb" + "x" * 1000, "form", "login.fail", "é\u2028", {})
    ledger.close()
    [row] = _rows(tmp_path / "ledger.sqlite")
    assert "\n" not in row["who"]
    assert len(row["who"]) <= 300
    assert first_break([row]) is None


# ---- retention ----------------------------------------------------------------------------------


def _aged(path, ledger):
    """A trail whose first four entries are old, after they were removed."""
    _rewritten(path, [1.0, 2.0, 3.0, 4.0])
    kept = Head(id=2, hash=_rows(path)[1]["hash"])
    last = Head(id=4, hash=_rows(path)[3]["hash"])
    assert ledger.trail.prune(1000.0) == 4
    return kept, last


def _rewritten(path, times):
    """Give the first entries other times, with correct hashes."""
    rows, previous = _rows(path), FIRST
    for row, at in zip(rows, times + [row["at"] for row in rows[len(times) :]], strict=True):
        row.update(at=at, previous=previous)
        previous = row["hash"] = entry_hash(row)
    with sqlite3.connect(path) as database:
        for row in rows:
            database.execute(
                "UPDATE audit SET at = :at, previous = :previous, hash = :hash WHERE id = :id", row
            )
    database.close()


def test_old_entries_are_removed_and_the_rest_is_intact(path, ledger):
    """From the anchor on, which is an entry itself; kept heads of removed entries do no harm."""
    kept, last = _aged(path, ledger)
    rows = _rows(path)
    assert [row["id"] for row in rows] == [5, 6, 7]
    detail = json.loads(rows[-1]["detail"])
    assert detail == {"entries": 4, "hash": last.hash, "until": 4.0}
    assert first_break(rows, [kept, last, ledger.trail.head()]) is None
    assert ledger.trail.prune(1000.0) == 0
    ledger.trail.append("ann", "socket", "run.stop", "run-1", {})
    assert first_break(_rows(path)) is None


def test_second_removal_anchors_anew(path, ledger):
    """The first anchor may go with the entries before it."""
    _aged(path, ledger)
    assert ledger.trail.prune(4e9) == 3
    rows = _rows(path)
    assert [row["id"] for row in rows] == [8]
    assert first_break(rows) is None


@pytest.mark.parametrize(
    ("statement", "broken"),
    [
        ("DELETE FROM audit WHERE id = 5", 1),
        ("DELETE FROM audit WHERE id = 7", 1),
        ("UPDATE audit SET who = 'eve' WHERE id = 5", 5),
        ("UPDATE audit SET previous = hash WHERE id = 5", 5),
        ("UPDATE audit SET detail = '{}' WHERE id = 7", 7),
    ],
)
def test_tampering_after_a_removal_is_found(path, ledger, statement, broken):
    """Of the kept entries, of their beginning, and of the anchor."""
    _aged(path, ledger)
    _tamper(path, statement)
    assert first_break(_rows(path)).id == broken


def test_wrong_head_of_the_last_removed_entry_is_found(path, ledger):
    """The anchor is compared with a kept head."""
    _aged(path, ledger)
    assert first_break(_rows(path), [Head(id=4, hash="0" * 64)]).id == 4


def test_entry_behind_a_younger_one_is_kept(path, ledger):
    """A clock that was set back removes nothing too early."""
    _rewritten(path, [1.0, 2.0, 5000.0, 3.0])
    assert ledger.trail.prune(1000.0) == 2
    assert [row["id"] for row in _rows(path)] == [3, 4, 5, 6, 7]
    assert first_break(_rows(path)) is None
