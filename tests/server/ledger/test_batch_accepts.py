"""Accepts together decide and write what accepts one after another do, on a real PostgreSQL."""

import hashlib
import random
from collections import Counter

import pytest
import sqlalchemy as sa

from fedloom.protocol.errors import Refusal
from fedloom.server.ledger import AcceptedUpdate, Ledger
from fedloom.server.ledger.objects.stored_bodies import BodyObject, StoredPart
from fedloom.server.ledger.replicas.batch_accepts import GateUpload, together
from fedloom.server.ledger.tables import clients, cohorts, inbox, rounds, updates
from support.contexts import rows_of

pytestmark = pytest.mark.long

SIDES = ("together", "one by one")
KINDS = ("train", "evaluate")
PARTS = 2
SEEDS = 12


class Scenario:
    """Runs and updates as a seed draws them, with names of one side."""

    def __init__(self, ledger, side, seed):
        self.ledger, self.draw = ledger, random.Random(seed)
        self.prefix = f"{side[0]}{seed}-"
        self.runs = [self.prefix + kind for kind in KINDS]
        self.names = [f"{self.prefix}c{number}" for number in range(14)]
        for name in self.names:
            ledger._change(
                clients.insert().values(
                    name=name, enrolled_at=1.0, failures=self.draw.choice([0, 3]),
                    status=self.draw.choice(["active"] * 8 + ["revoked"]),
                    hold=self.draw.choice([None] * 8 + ["quarantine", "drain"]),
                )
            )  # fmt: skip
        for run, kind in zip(self.runs, KINDS, strict=True):
            row = {"id": run, "name": run, "spec": {}, "state": "running", "model": "m"}
            ledger.add_run(row, 9)
            round_ = {
                "run": run, "number": 1, "kind": kind, "opened_at": 1.0, "deadline_at": 9.0,
                "model_in": "m",
            }  # fmt: skip
            ledger.open_round(round_, [n for n in self.names if self.draw.random() < 0.9])
        self.capacity = {run: self.draw.choice([3, 5, 99]) for run in self.runs}
        before = self.uploads(self.names[:5])
        self.uploaded = self.uploads(self.names)
        for each in before:
            ledger.accept_at_gate("g", 0, [each])
        if self.draw.random() < 0.2:
            ledger.close_round(self.runs[0], 1)

    def uploads(self, names):
        found = [self.upload(self.draw.choice(self.runs), name) for name in names]
        if self.draw.random() < 0.5:  # a client with two updates
            found.append(self.upload(self.draw.choice(self.runs), self.draw.choice(names)))
        self.draw.shuffle(found)
        return found

    def upload(self, run, name):
        header = self.draw.choice([b"header"] * 6 + [b"another"])
        file = self.draw.choice([f"{run}.1.{name}"] * 8 + [""])
        if file and self.draw.random() < 0.9 and not self.ledger.body_object(file):
            body = BodyObject(object=file, header=b"header", size_bytes=9)
            self.ledger.begin_body(file, run, 1, body)
            parts = [StoredPart(7, str(number)) for number in range(PARTS)]
            for count in range(self.draw.choice([PARTS] * 8 + [1])):
                self.ledger.note_parts(body.object, parts[: count + 1])
        update = AcceptedUpdate(
            client=name, run=run, round=1, identity=hashlib.sha256(header).hexdigest(), file=file,
            size_bytes=9, weight=1.0, norm=1.0, training={}, evaluation={},
            devices=self.draw.choice([None] * 5 + [2]),
        )  # fmt: skip
        return GateUpload(update=update, capacity=self.capacity[run], parts=PARTS)

    def plain(self, value):
        """A value without the names of this side."""
        return str(value).replace(self.prefix, "")

    def shown(self, results):
        return [
            (self.plain(each.update.client), self.plain(each.update.run), self._result(result))
            for each, result in zip(self.uploaded, results, strict=True)
        ]

    def _result(self, result):
        if isinstance(result, Refusal):
            return result.code, self.plain(result)
        return None if result is None else self.plain(result)

    def rows(self):
        """What the ledger has of this side, but for times."""
        for table, column in (
            (updates, "run"), (cohorts, "run"), (rounds, "run"), (clients, "name"),
            (inbox, "client"),
        ):  # fmt: skip
            its = table.select().where(table.c[column].startswith(self.prefix))
            found = [
                tuple(
                    self.plain(value)
                    for key, value in row.items()
                    if key != "id" and not key.endswith("_at")
                )
                for row in rows_of(self.ledger, its)
            ]
            yield table.name, sorted(found)


def accepted(ledger, side, uploads):
    if side == SIDES[0]:
        return ledger.accept_at_gate("g", 0, uploads)
    return [result for each in uploads for result in ledger.accept_at_gate("g", 0, [each])]


def test_accepts_together_are_as_one_by_one(database, request):
    """Members, revoked and held clients, repeats, other updates, parts that lack, full rounds."""
    ledger, seen = Ledger(database.create(request.node.name)), Counter()
    try:
        for seed in range(SEEDS):
            sides = {side: Scenario(ledger, side, seed) for side in SIDES}
            for _ in range(2):  # the second time most are repeats
                shown = [
                    sides[side].shown(accepted(ledger, side, sides[side].uploaded))
                    for side in SIDES
                ]
                assert sorted(shown[0], key=str) == sorted(shown[1], key=str), f"seed {seed}"
                assert dict(sides[SIDES[0]].rows()) == dict(sides[SIDES[1]].rows()), f"seed {seed}"
                seen.update(_what(result) for _, _, result in shown[0])
    finally:
        ledger.close()
    wanted = {
        "accepted", "repeat", "revoked", "quarantined", "busy", "round_closed", "not_in_cohort",
        "conflicting_update",
    }  # fmt: skip
    assert seen.keys() >= wanted, seen


def _what(result):
    if result is None:
        return "repeat"
    return result[0].value if isinstance(result, tuple) else "accepted"


def test_two_updates_of_one_client_are_not_accepted_together():
    def upload(client, max_staleness=None):
        update = AcceptedUpdate(
            client=client, run="r", round=1, identity="", file="", size_bytes=9, weight=1.0,
            norm=1.0, training={}, evaluation={},
        )  # fmt: skip
        return GateUpload(update=update, capacity=9, parts=1, max_staleness=max_staleness)

    twice, one, two = [upload("a"), upload("a")], upload("b"), upload("c")
    assert together([*twice, one, two, upload("d", 2)]) == [one, two]
    assert together([*twice, one]) == []


def test_few_statements_accept_many_updates(database, request):
    """As many for two as for a hundred."""
    ledger = Ledger(database.create(request.node.name))
    counts = []
    try:
        for number in (2, 100):
            run, names = f"r{number}", [f"{number}-{each}" for each in range(number)]
            for name in names:
                row = {"name": name, "status": "active", "enrolled_at": 1.0}
                ledger._change(clients.insert().values(row))
            row = {"id": run, "name": run, "spec": {}, "state": "running", "model": "m"}
            ledger.add_run(row, 9)
            round_ = {
                "run": run, "number": 1, "kind": "train", "opened_at": 1.0, "deadline_at": 9.0,
                "model_in": "m",
            }  # fmt: skip
            ledger.open_round(round_, names)
            uploads = [
                GateUpload(
                    update=AcceptedUpdate(
                        client=name, run=run, round=1, identity="", file="", size_bytes=9,
                        weight=1.0, norm=1.0, training={}, evaluation={},
                    ), capacity=999, parts=0,
                ) for name in names
            ]  # fmt: skip
            executed = []

            def note(*arguments, executed=executed):
                executed.append(arguments[2])

            sa.event.listen(ledger._engine, "before_cursor_execute", note)
            results = ledger.accept_at_gate("g", 0, uploads)
            sa.event.remove(ledger._engine, "before_cursor_execute", note)
            assert [each.client for each in results] == names
            counts.append(len(executed))
    finally:
        ledger.close()
    assert counts[0] == counts[1] < 15
