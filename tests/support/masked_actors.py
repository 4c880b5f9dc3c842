"""Gates and drivers of a masked round as actors, and what must hold of its rows after each commit.

As `support.gate_actors`, whose servers and bodies these are. The round has one session, of ann, bob
and eve, of which `SHARED` have shared; a body is a small number, as if its masks were those that
the sum of its session takes off. After each commit the rows are read in one snapshot and compared
with those before:

- a change is by the driver whose lease is in the ledger, or by a gate that has a row;
- a body is accepted once, while its session is MASKING, of a member that has shared and is neither
  revoked nor in quarantine; if a gate accepts it, one message tells the driver; its identity stays;
- the members whose bodies are accepted are in `masked` once that is fixed, no others are, and it
  never changes;
- of a file there is one body; that of an accepted one is whole, of its header, and does not change
  before its session is over;
- who was acknowledged has an accepted body; the updates of a session that is done are its survivors
  and what they sent, and its sum is that of their bodies;
- once all have ended and the session takes no more bodies, none is left that was not accepted.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from fedloom.protocol.errors import Code, Refusal
from fedloom.server.engine import SessionState
from fedloom.server.ledger.masking.bodies import MaskedUpload
from fedloom.server.ledger.masking.sessions import BODY
from fedloom.server.ledger.replicas.gate_queues import GATE_S
from fedloom.server.ledger.replicas.lease_rows import LEASE_S, Lease, LeaseLostError
from support import gate_actors
from support.gate_actors import KEY, NUMBERS, PARTS, Gate, file_of, identity_of
from support.interleavings import InvariantError, Scheduler
from support.ledger_actors import RUN, Server, expect

AT = (*KEY, 0)
MEMBERS = ("ann", "bob", "eve")
SHARED = ("ann", "bob")
PAST = [each for each in SessionState if each not in (SessionState.SHARING, SessionState.MASKING)]

_TABLES = (
    *("clients", "runs", "models", "rounds", "cohorts", "populations", "drivers"),
    *("masking_sessions", "masking_messages"),
)
_OTHERS = ("updates", "spool_objects", "gates", "inbox")

_SNAPSHOT = """
SELECT
  (SELECT to_json(d) FROM (SELECT epoch, holder FROM drivers) d),
  (SELECT json_object_agg(id, renewed_at) FROM gates),
  (SELECT to_json(s) FROM (SELECT state, shared, masked FROM masking_sessions) s),
  (SELECT json_object_agg(client, digest) FROM masking_messages WHERE phase = 'body'),
  (SELECT json_object_agg(client, identity) FROM updates),
  (SELECT json_agg(s ORDER BY object) FROM (
    SELECT object, file, encode(header, 'escape') AS header, parts FROM spool_objects) s),
  (SELECT json_agg(client ORDER BY id) FROM inbox),
  (SELECT json_object_agg(name, (status, hold)) FROM clients),
  (SELECT model_out FROM rounds)
"""


@dataclass(frozen=True, slots=True)
class Rows:
    """What is committed: the session, accepted identities by client, and bodies."""

    driver: dict
    gates: dict[str, float]
    session: dict
    accepted: dict[str, str]
    updates: dict[str, str]
    bodies: list[dict]
    inbox: list[str]
    clients: dict[str, dict]
    model: str | None

    @property
    def lease(self):
        return Lease(self.driver["epoch"], self.driver["holder"])

    @property
    def state(self):
        return SessionState(self.session["state"])

    @property
    def ledger(self):
        """What gates and the driver change."""
        return self.session, self.accepted, self.updates, self.bodies, self.inbox, self.clients

    def bodies_of(self, client):
        return [each for each in self.bodies if each["file"] == file_of(client)]


class Work(gate_actors.Work):
    """What a program calls: methods of its server, whose answers are compared with the rows."""

    def accept(self, *names):
        """Accept bodies that this server has stored, or believes to have; delete late ones."""
        for name in names:
            client = name.split(".")[0]
            upload = MaskedUpload(
                at=AT, client=client, file=file_of(client), header=name.encode(), parts=PARTS
            )
            try:
                self.ledger.accept_body(upload, self.name if self.name in "gh" else "")
            except Refusal as refusal:
                if refusal.code is Code.ROUND_CLOSED:
                    self.ledger.drop_unaccepted(file_of(client), *KEY)
            else:
                self.gates.acknowledged[client] = identity_of(name)

    # ---- the driver ----

    def take_over(self):
        """Take the lease as a standby does; whether it was free."""
        return self.server.take(self.name)

    def ask(self):
        """Ask the members that have shared for their bodies."""
        self.ledger.move_session(AT, SessionState.MASKING, shared=SHARED)

    def freeze(self):
        """Freeze the session, and delete what does not count, as the driver does; its survivors."""
        masked = self.ledger.freeze_session(AT)
        self._drop({*MEMBERS} - {*masked})
        return masked

    def abandon(self):
        self.ledger.move_session(AT, SessionState.ABANDONED, reason="by the operator")
        self._drop(MEMBERS)

    def unmask(self):
        """Take a session that is frozen to its sum, and commit the round."""
        [session] = self.ledger.sessions(*KEY)
        self.ledger.move_session(AT, SessionState.AGREEING)
        self.ledger.move_session(AT, SessionState.REVEALING)
        self.ledger.move_session(AT, SessionState.UNMASKING, revealed=session.masked)
        total = sum(self._number(file_of(client)).value for client in session.masked)
        files = {client: file_of(client) for client in session.masked}
        self.ledger.finish_session(AT, files, 9)
        self._drop(MEMBERS)
        self.ledger.close_round(*KEY)
        result = {
            "model_out": str(total), "strategy_state": None, "training": {}, "evaluation": {},
            "counts": True,
        }  # fmt: skip
        self.ledger.commit_round(*KEY, result, 1)

    def _drop(self, clients):
        for client in sorted(clients):
            self._forget(self.ledger.bodies_of_file(file_of(client)))


@dataclass(frozen=True, slots=True)
class MaskedScenario:
    """What several actors do at once.

    Args:
        programs: of each actor, by its name.
        stored: whole bodies that are there before.
        accepted: bodies that are: by which server, by name.
        lease: "held" by `a`, or "expired".
        late: gates that the driver is to strike out.
        sharing: whether the session waits for shares, not for bodies.
    """

    programs: dict[str, Callable[[Work], None]]
    stored: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    lease: str = "held"
    late: tuple[str, ...] = ()
    sharing: bool = False


class MaskedGates:
    """Two gates and two drivers of one ledger, in which schedules are run; ended by `close`.

    Args:
        database: a `PostgreSQL`.

    Attributes:
        acknowledged: identities that were acknowledged, by client.
    """

    def __init__(self, database):
        url = database.create("masked")
        self.scheduler = Scheduler(url.replace("+psycopg", ""))
        self.scheduler.on_commit = self._look
        self._loop = asyncio.new_event_loop()
        self.servers = {name: Server(url, self._loop) for name in ("a", "b")}
        self._begin(self.servers["a"])
        self.servers |= {name: Gate(url, name) for name in ("g", "h")}
        for name, server in self.servers.items():
            rows = server.rows if name in "gh" else server.turn._rows
            self.scheduler.watch(server.ledger._engine)
            self.scheduler.watch(rows._engine)

    def close(self):
        for server in self.servers.values():
            server.close()
        self.scheduler.close()
        self._loop.close()

    def drives(self, name):
        """Whether it is a driver's turn."""
        return self.servers[name].lease == self._rows().lease

    def run(self, scenario, choose):
        """Run a scenario in one order, on new rows; returns the points.

        Raises:
            InvariantError: something does not hold.
        """
        self._set_up(scenario)
        self._work = {name: Work(self, name) for name in scenario.programs}
        programs = {name: self._program(name, each) for name, each in scenario.programs.items()}
        points, self._ended = [], set()
        try:
            self.scheduler.run(programs, choose, points)
            self._check_end(scenario, self._last)
        except InvariantError as violation:
            raise InvariantError(str(violation), points) from violation
        return points

    def _begin(self, first):
        # In the other order than that in which they are locked.
        names = ", ".join(f"('{each}', 'active', 1)" for each in reversed(MEMBERS))
        self._execute(f"INSERT INTO clients (name, status, enrolled_at) VALUES {names}")
        first.take("a")
        row = {"id": RUN, "name": "", "spec": {}, "state": "running", "model": "old"}
        first.ledger.add_run(row, 1)
        at = {"run": RUN, "number": 1, "kind": "train", "opened_at": 0.0, "deadline_at": 60.0}
        first.ledger.open_round({**at, "model_in": "old"}, MEMBERS)
        adverts = {name: name.encode() for name in MEMBERS}
        first.ledger.open_sessions(*KEY, [("", MEMBERS)], deadline_at=9e9, adverts=adverts)
        self._execute(*(f"CREATE TABLE first_{each} AS SELECT * FROM {each}" for each in _TABLES))

    def _set_up(self, scenario):
        """The rows as they were first, and what a scenario adds."""
        now = "extract(epoch FROM clock_timestamp())"
        expired = LEASE_S + 1 if scenario.lease == "expired" else 0
        ages = {name: GATE_S + 1 if name in scenario.late else 0 for name in "gh"}
        self._execute(
            *(f"DELETE FROM {each}" for each in (*_OTHERS, *reversed(_TABLES))),
            *(f"INSERT INTO {each} SELECT * FROM first_{each}" for each in _TABLES),
            f"UPDATE drivers SET renewed_at = {now} - {expired}",
            "UPDATE clients SET failures = 2",
            *(f"INSERT INTO gates VALUES ('{each}', '', {now} - {ages[each]})" for each in ages),
            *(gate_actors.stored(name) for name in (*scenario.stored, *scenario.accepted)),
        )
        self.acknowledged = {}
        for name in "ab":
            self.servers[name].turn._lease = Lease(1, "a") if name == "a" else None
        self._last = self._rows()
        if not scenario.sharing:
            shared = '["ann", "bob"]'
            self._execute(f"UPDATE masking_sessions SET state = 'masking', shared = '{shared}'")
        for name in scenario.accepted:
            Work(self, "g").accept(name)
        self._last = self._rows()

    def _execute(self, *statements):
        self.scheduler.database.execute("; ".join(statements))

    def _program(self, actor, program):
        def perform():
            work = self._work[actor]
            try:
                program(work)
                self._ended.add(actor)
            except LeaseLostError:
                pass  # then a server ends
            except sa.exc.DBAPIError as error:
                expect(False, f"{actor}: {error}")

        return perform

    # ---- what must hold ----

    def _look(self, actor):
        """Compare the rows with those before an actor's commit."""
        work, before, rows = self._work[actor], self._last, self._rows()
        self._last = rows
        if rows.ledger != before.ledger:
            self._check_right(work, rows)
        self._check_accepted(work, before, rows)
        self._check_session(before, rows)
        self._check_bodies(before, rows)
        self._check_sum(rows)

    def _check_right(self, work, rows):
        if work.name in "gh":
            expect(work.name in rows.gates, f"{work.actor} committed, though it was struck out.")
        else:
            lease = self.servers[work.name].lease
            expect(lease == rows.lease, f"{work.actor} committed by {lease}, not by {rows.lease}.")

    def _check_accepted(self, work, before, rows):
        for client, identity in before.accepted.items():
            found = rows.accepted.get(client)
            expect(found == identity, f"The body of {client} was {identity}, then {found}.")
        added = rows.accepted.keys() - before.accepted.keys()
        for client in added:
            state, shared = before.state, before.session["shared"] or ()
            expect(state is SessionState.MASKING, f"{client} was taken in a session {state}.")
            expect(client in shared, f"{client} was taken, and has not shared.")
            held = [*rows.clients[client].values()]
            expect(held == ["active", None], f"{client} was taken, and is {held}.")
        came = Counter(rows.inbox) - Counter(before.inbox)
        told = added if work.name in "gh" else ()
        expect(came == Counter(told), f"{work.actor} took {added}, told {came}.")
        for client, identity in self.acknowledged.items():
            found = rows.accepted.get(client)
            expect(found == identity, f"{client} was acknowledged, and has {found}.")

    def _check_session(self, before, rows):
        for name in ("shared", "masked"):
            old, new = before.session[name], rows.session[name]
            expect(old in (None, new), f"{name} was {old}, then {new}.")
        if rows.session["masked"] is not None:
            masked, accepted = rows.session["masked"], sorted(rows.accepted)
            expect(
                masked == accepted, f"The session sums {masked}, of {accepted} bodies are taken."
            )

    def _check_bodies(self, before, rows):
        files = Counter(each["file"] for each in rows.bodies)
        expect(all(count == 1 for count in files.values()), f"Of one file each: {files}.")
        if rows.state.is_over:
            return
        for client, identity in rows.accepted.items():
            found = rows.bodies_of(client)
            whole = len(found) == 1 and len(found[0]["parts"]) == PARTS
            its = whole and identity_of(found[0]["header"]) == identity
            expect(its, f"{client} was accepted, and its body is {found}.")
            if client in before.accepted:
                expect(found == before.bodies_of(client), f"The body of {client} changed.")

    def _check_sum(self, rows):
        if rows.state is SessionState.DONE:
            masked = {client: rows.accepted[client] for client in rows.session["masked"]}
            expect(rows.updates == masked, f"{rows.updates} count, {masked} are in the sum.")
        if rows.model is not None:
            named = {identity_of(name): sum(parts) for name, parts in NUMBERS.items()}
            total = sum(named[rows.accepted[client]] for client in rows.session["masked"])
            expect(rows.model == str(total), f"Expected {total}, got {rows.model}.")

    def _check_end(self, scenario, rows):
        if self._ended == scenario.programs.keys() and rows.state in PAST:
            left = {each["file"] for each in rows.bodies} - set(map(file_of, rows.accepted))
            expect(not left, f"Late bodies are left: {left}.")

    def _rows(self):
        found = self.scheduler.database.execute(_SNAPSHOT).fetchone()
        driver, gates, session, accepted, updates, bodies, inbox, clients, model = found
        return Rows(
            driver, gates or {}, session, accepted or {}, updates or {}, bodies or [], inbox or [],
            clients, model,
        )  # fmt: skip


assert BODY == "body", "the snapshot names it"
