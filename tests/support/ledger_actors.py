"""Servers of one ledger as actors, and what must hold of its rows after each of their commits.

The actors perform the product's own methods on a PostgreSQL server, each with the fence of its
server's turn; an actor's name begins with its server's. `Ledgers.run` runs a scenario in one order
(`support.interleavings`), on the rows of a new run. After each commit these are read in one
snapshot and compared with those before:

- a change is by the server whose lease is in the ledger (the fence);
- epochs rise by one, each has one holder, a lease is taken only when it has expired or was
  released, and only its holder renews it;
- rounds change as `NEXT` says, and one that is committed or abandoned never changes;
- updates are added while their round is `reporting`, at most `CAPACITY`, and never change;
- a commit sets run, model and counter, and its model is that of exactly the accepted updates;
- what a method returned or raised agrees with the rows, and a server that was refused knows;
- the database reports no error, but that a key exists to a server whose turn has passed.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import sqlalchemy as sa

from fedloom.protocol.errors import Code, Refusal
from fedloom.server.ledger import AcceptedUpdate, Ledger
from fedloom.server.ledger.replicas.lease_rows import LEASE_S, Lease, LeaseLostError
from fedloom.server.replicas.lease import ReplicaTurn
from support.interleavings import InvariantError, Scheduler

RUN = "run"
CAPACITY = 2
COHORT = ("ann", "bob", "eve")
NEXT = {
    None: {"reporting"},
    "reporting": {"closing", "abandoned"},
    "closing": {"committed", "abandoned"},
    "committed": set(),
    "abandoned": set(),
}
"""The states that may follow each state of a round."""
OVER = ("committed", "abandoned")

_TABLES = ("runs", "models", "rounds", "cohorts", "populations", "drivers")
"""Those of a new run, in the order of their references."""

_NOW = "extract(epoch FROM clock_timestamp())"
_LEASES = {
    "held": f"UPDATE drivers SET renewed_at = {_NOW}",
    "expired": f"UPDATE drivers SET renewed_at = {_NOW} - {LEASE_S + 1}",
    "restored": f"UPDATE drivers SET renewed_at = {_NOW}, holder = 'b'",
    "free": "DELETE FROM drivers",
}
"""What makes the lease stand as a scenario says."""

_SNAPSHOT = """
SELECT
  (SELECT json_agg(d) FROM (SELECT epoch, holder, renewed_at FROM drivers) d),
  (SELECT json_object_agg(number, r) FROM (
    SELECT number, state, model_out FROM rounds) r),
  (SELECT json_object_agg(client || '.' || round, u) FROM (
    SELECT client, round, identity, counts_in, devices, file FROM updates) u),
  (SELECT json_object_agg(round, digest) FROM models),
  (SELECT to_json(r) FROM (
    SELECT model, committed, last_round, abandoned_in_a_row FROM runs) r),
  (SELECT json_agg(client || '.' || round) FROM cohorts WHERE phase = 'reported'),
  extract(epoch FROM clock_timestamp())::float
"""


@dataclass(frozen=True, slots=True)
class Rows:
    """What is committed; rounds and models by number, updates by "client.round"."""

    drivers: list[dict]
    rounds: dict[str, dict]
    updates: dict[str, dict]
    models: dict[str, str]
    run: dict
    reported: list[str]
    now: float

    @property
    def lease(self):
        """Whose turn it is."""
        return Lease(self.drivers[0]["epoch"], self.drivers[0]["holder"]) if self.drivers else None

    def counted(self, number):
        """The updates in a round's sum."""
        return {key: each for key, each in self.updates.items() if each["counts_in"] == int(number)}

    def state(self, number):
        """Of a round; None before it is opened."""
        return self.rounds.get(str(number), {}).get("state")

    @property
    def ledger(self):
        """What only the driver may change."""
        return self.rounds, self.updates, self.models, self.run, self.reported


def expect(condition, message):
    """Raise a violation unless the condition holds."""
    if not condition:
        raise InvariantError(message)


def model_of(number, updates):
    """Digest of the model of a round with these updates, named "client.round"."""
    return f"{number}:{','.join(sorted(updates))}"


class Server:
    """A server of the ledger, with its turn."""

    def __init__(self, url, loop):
        self.ledger = Ledger(url)
        self.turn = loop.run_until_complete(_turn(self.ledger))

    @property
    def lease(self):
        """Of its turn; None before it."""
        return self.turn._lease

    def take(self, name):
        """Take the lease, as `ReplicaTurn.wait` does; whether it was free."""
        taken = self.turn._rows.take(name, name)
        if taken is not None:
            self.turn._lease, _ = taken
        return taken is not None

    def close(self):
        self.turn.release()
        self.ledger.close()


async def _turn(ledger):
    return ReplicaTurn(ledger)


@dataclass
class Work:
    """What a program calls: methods of its server, whose answers are compared with the rows.

    Args:
        server: of the actor.
        name: of the server.
        answers: since the last commit. Each is called with the rows before and after that commit,
            and raises what does not hold.
    """

    server: Server
    name: str
    answers: list[Callable[[Rows, Rows], None]] = field(default_factory=list)

    # ---- the lease ----

    def take(self):
        """Whether the lease was free."""
        taken = self.server.take(self.name)
        if taken:
            lease = self.server.lease
            self._then(lambda _, rows: expect(rows.lease == lease, f"{self.name} took {lease}."))
        return taken

    def renew(self):
        lease, renewed = self.server.lease, self.server.turn._rows.renew(self.server.lease)
        message = f"{self.name} renewed {lease}: {renewed}."
        self._then(lambda _, rows: expect(renewed is (rows.lease == lease), message))

    def release(self):
        self.server.turn._rows.release(self.server.lease)

    # ---- rounds ----

    def accept(self, *wanted):
        """Accept updates of the first round in one transaction, each named "client.identity"."""
        updates = [_update(*each.split(".")) for each in wanted]
        results = self.server.ledger.accept_all([(each, CAPACITY) for each in updates])
        for update, result in zip(updates, results, strict=True):
            self._then(partial(_check_answer, update, result))

    def open(self, number):
        self.server.ledger.open_round(_round(number), COHORT)
        self._then(lambda _, rows: expect(rows.state(number), f"Round {number} has no row."))

    def finish(self, number):
        """Close and commit a round, with the model of the updates that closing returned."""
        ledger = self.server.ledger
        accepted = {f"{each.client}.{each.round}" for each in ledger.close_round(RUN, number)}
        model = model_of(number, accepted)
        result = {
            "model_out": model, "strategy_state": None, "training": {}, "evaluation": {},
            "counts": True,
        }  # fmt: skip
        ledger.commit_round(RUN, number, result, 1)
        self._is_over(number)
        same = f"Closing round {number} returned {sorted(accepted)}, and more was accepted."
        self._then(lambda _, rows: expect(rows.counted(number).keys() == accepted, same))

    def abandon(self, number):
        self.server.ledger.abandon_round(RUN, number, "too few", "quorum")
        self._is_over(number)

    def go_on(self):
        """Do what a server does that took over: finish the open round, and open the next."""
        row = self.server.ledger.open_round_of(RUN)
        if row is not None:
            self.finish(row.number)
        self.open(2)

    def _is_over(self, number):
        def check(_, rows):
            expect(rows.state(number) in OVER, f"Round {number} is {rows.state(number)}, not over.")

        self._then(check)

    def _then(self, check):
        self.answers.append(check)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What several actors do at once.

    Args:
        lease: how it stands: "held" by `a`, "expired" (it was `a`'s), "restored" (`a` and `b` have
            the same epoch, `b`'s is in the ledger) or "free" (nobody ever drove).
        programs: of each actor, by its name.
    """

    lease: str
    programs: dict[str, Callable[[Work], None]]


class Ledgers:
    """Three servers of one ledger, in which any number of schedules is run; ended by `close`.

    Args:
        database: a `PostgreSQL`.
    """

    def __init__(self, database):
        url = database.url()
        self.scheduler = Scheduler(url.replace("+psycopg", ""))
        self.scheduler.on_commit = self._look
        self._loop = asyncio.new_event_loop()
        self.servers = {name: Server(url, self._loop) for name in ("a", "b", "c")}
        for server in self.servers.values():
            self.scheduler.watch(server.ledger._engine)
            self.scheduler.watch(server.turn._rows._engine)
        self._begin()

    def close(self):
        for server in self.servers.values():
            server.close()
        self.scheduler.close()
        self._loop.close()

    def run(self, scenario, choose):
        """Run a scenario in one order, on new rows; returns the points.

        Raises:
            InvariantError: something does not hold.
        """
        self._set_up(scenario.lease)
        self._last = self._rows()
        self._work = {name: Work(self.servers[name[0]], name[0]) for name in scenario.programs}
        programs = {name: self._program(name, each) for name, each in scenario.programs.items()}
        points, self._refused = [], set()
        try:
            self.scheduler.run(programs, choose, points)
            self._check_losses()
            expect(not any(each.answers for each in self._work.values()), "Answered uncommitted.")
            expect(self._rows().ledger == self._last.ledger, "Rows changed without a commit.")
        except InvariantError as violation:
            raise InvariantError(str(violation), points) from violation
        return points

    def _begin(self):
        """A run whose first round is open, and a copy of its rows."""
        first = self.servers["a"]
        first.take("a")
        run = {"id": RUN, "name": "", "spec": {}, "state": "running", "model": "old"}
        first.ledger.add_run(run, 1)
        first.ledger.open_round(_round(1), COHORT)
        self._execute(*(f"CREATE TABLE first_{each} AS SELECT * FROM {each}" for each in _TABLES))

    def _set_up(self, lease):
        """The rows as they were first, but for the lease."""
        self._execute(
            "DELETE FROM updates",
            *(f"DELETE FROM {each}" for each in reversed(_TABLES)),
            *(f"INSERT INTO {each} SELECT * FROM first_{each}" for each in _TABLES),
            _LEASES[lease],
        )
        self._loop.run_until_complete(asyncio.sleep(0))  # what a violation left: an end of a turn
        holders = {"free": (), "restored": ("a", "b")}.get(lease, ("a",))
        for name, server in self.servers.items():
            server.turn._lease = Lease(1, name) if name in holders else None
            server.turn.lost = self._loop.create_future()

    def _execute(self, *statements):
        self.scheduler.database.execute("; ".join(statements))

    def _program(self, name, program):
        def perform():
            try:
                program(self._work[name])
            except LeaseLostError:  # then a server ends
                self._refused.add(name[0])
            except sa.exc.DBAPIError as error:
                is_late = self._last.lease != self.servers[name[0]].lease
                expect(isinstance(error, sa.exc.IntegrityError) and is_late, f"{name}: {error}")

        return perform

    def _look(self, name):
        """Compare the rows with those before an actor's commit."""
        work, before, rows = self._work[name], self._last, self._rows()
        self._last = rows
        _check_lease(before, rows, work.server.lease)
        if rows.ledger != before.ledger:
            lease = work.server.lease
            expect(lease == rows.lease, f"{work.name} committed by {lease}, not by {rows.lease}.")
            _check_changes(before, rows)
            _check_rounds(rows)
        answers, work.answers = work.answers, []
        for compare in answers:
            compare(before, rows)

    def _check_losses(self):
        """Check that a server knows if a commit in its turn was refused, and then alone."""
        self._loop.run_until_complete(asyncio.sleep(0))
        for name, server in self.servers.items():
            is_lost = name in self._refused and server.lease is not None
            expect(server.turn.lost.done() == is_lost, f"{name} has lost its turn: {is_lost}.")

    def _rows(self):
        found = self.scheduler.database.execute(_SNAPSHOT).fetchone()
        drivers, rounds, updates, models, run, reported, now = found
        reported = sorted(reported or ())
        return Rows(drivers or [], rounds or {}, updates or {}, models, run, reported, now)


def _update(client, identity):
    return AcceptedUpdate(
        run=RUN, round=1, client=client, identity=identity, file=f"{client}.{identity}",
        size_bytes=1, weight=1.0, norm=1.0,
    )  # fmt: skip


def _round(number):
    return {
        "run": RUN, "number": number, "kind": "train", "opened_at": 0.0, "deadline_at": 60.0,
        "model_in": "old",
    }  # fmt: skip


def _check_lease(before, after, lease):
    """Check who has the lease after a commit of a server with this lease."""
    expect(len(after.drivers) == 1, f"Expected one driver, got {after.drivers}.")
    old, new = before.lease, after.lease
    if new != old:
        epoch = 0 if old is None else old.epoch
        expect(new.epoch == epoch + 1, f"{new} follows {old}.")
        if old is not None:
            age_s = after.now - before.drivers[0]["renewed_at"]
            expect(age_s > LEASE_S, f"{new} was taken from {old}, which was {age_s:.1f} s old.")
    elif after.drivers != before.drivers:
        expect(lease == new, f"{lease} changed the lease {new}.")


def _check_changes(before, after):
    """Check what may change between two commits."""
    for number, row in after.rounds.items():
        old = before.rounds.get(number)
        state = before.state(number)
        if old is None or row["state"] != state:
            expect(row["state"] in NEXT[state], f"Round {number}: {state}, then {row['state']}.")
        else:
            expect(row == old, f"Round {number} changed: {old}, then {row}.")
    for key, row in before.updates.items():
        expect(after.updates.get(key) == row, f"{key} changed: {row}, then {after.updates}.")
    for key in sorted(after.updates.keys() - before.updates.keys()):
        state = before.state(after.updates[key]["counts_in"])
        expect(state == "reporting", f"{key} was accepted in a round that is {state}.")


def _check_rounds(rows):
    """Check that the rows of a run agree with each other."""
    for number, row in rows.rounds.items():
        counted = rows.counted(number)
        held = sum(each["devices"] or 1 for each in counted.values())
        expect(held <= CAPACITY, f"Round {number} accepted {held} of {CAPACITY}.")
        if row["state"] == "committed":
            model = model_of(number, counted)
            expect(row["model_out"] == model, f"Expected {model}, got {row['model_out']}.")
    made = {n: row["model_out"] for n, row in rows.rounds.items() if row["state"] == "committed"}
    last = max(made, default="0")
    left = sum(n > last and row["state"] == "abandoned" for n, row in rows.rounds.items())
    expected = {
        "model": made.get(last, "old"), "committed": len(made),
        "last_round": int(max(rows.rounds)), "abandoned_in_a_row": left,
    }  # fmt: skip
    expect(rows.run == expected, f"Expected the run as {expected}, got {rows.run}.")
    models = {"0": "old", **made}
    expect(rows.models == models, f"Expected the models {models}, got {rows.models}.")
    expect(rows.reported == sorted(rows.updates), f"{rows.reported} reported.")


def _check_answer(update, result, before, rows):
    """Check an answer to a client."""
    key = f"{update.client}.{update.round}"
    stored = rows.updates.get(key, {}).get("identity")
    is_its = stored == update.identity
    match result:
        case True:
            holds = is_its and key not in before.updates
        case False:
            holds = is_its
        case Refusal(code=Code.CONFLICTING_UPDATE):
            holds = stored is not None and not is_its
        case Refusal(code=Code.ROUND_CLOSED):
            is_full = len(rows.counted(update.counted)) == CAPACITY
            holds = stored is None and (is_full or rows.state(update.counted) != "reporting")
        case _:
            holds = False
    expect(holds, f"{key} with identity {update.identity} was answered {result}, has {stored}.")
