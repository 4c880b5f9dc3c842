"""Gates and drivers of one ledger as actors, and what must hold of its rows after each commit.

As `support.ledger_actors`, with two gates, `g` and `h`, beside the drivers `a` and `b`. An update
is a small number: each part of a body is one, and a gate's sum is the numbers of its members. After
each commit the rows are read in one snapshot and compared with those before:

- a change is by the driver whose lease is in the ledger, or by a gate that has a row; a driver
  deletes that row only once it is late;
- who has an update has reported;
- an update is added while its round is `reporting`, by a member that is neither revoked nor in
  quarantine, with one message to the driver; its slot keeps its identity;
- of a file there is one body; that of an accepted update is whole, of the update's header, and does
  not change before the round is over;
- `sealed_in` is set once, before the round is over; the rows that name a sum are the members that
  its gate has sealed, all or none;
- a message is read once, and by nobody whose turn had passed; what a driver has read of the ledger
  and of its inbox, with what is still in there, is all that was accepted;
- the sums that a driver's rows name, and the bodies of the rest, are together the accepted set: so
  the model of a round is the number that its rows add up to.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import sqlalchemy as sa

from fedloom.protocol.errors import IntegrityError, Refusal
from fedloom.server.client_failures import Failures
from fedloom.server.ledger import AcceptedUpdate, Ledger
from fedloom.server.ledger.directory import Seen
from fedloom.server.ledger.objects.stored_bodies import BodyObject, StoredPart
from fedloom.server.ledger.replicas import gate_queues
from fedloom.server.ledger.replicas.batch_accepts import GateUpload
from fedloom.server.ledger.replicas.gate_queues import GATE_S, GateLease, Telling, Told
from fedloom.server.ledger.replicas.lease_rows import LEASE_S, Lease, LeaseLostError
from fedloom.server.rounds.fold import Folder, sums_of
from support.interleavings import InvariantError, Scheduler
from support.ledger_actors import NEXT, OVER, RUN, Server, expect

KEY = (RUN, 1)
COHORT = ("ann", "bob", "eve")
CAPACITY = 2
PARTS = 2
NUMBERS = {"ann.1": (1, 2), "ann.2": (4, 8), "bob.1": (16, 32), "eve.1": (64, 128), "zoe.1": (0, 0)}
"""The parts of each body, named "client.identity"; `zoe` is no member of the round."""

SAYS = "says"
"""In place of a client, in messages that are of no update."""

_TABLES = ("clients", "runs", "models", "rounds", "cohorts", "populations", "drivers")
_OTHERS = ("updates", "spool_objects", "gates", "inbox")

_SNAPSHOT = """
SELECT
  (SELECT to_json(d) FROM (SELECT epoch, holder FROM drivers) d),
  (SELECT json_object_agg(id, renewed_at) FROM gates),
  (SELECT to_json(r) FROM (SELECT state, model_out FROM rounds) r),
  (SELECT json_object_agg(client, u) FROM (
    SELECT client, identity, file, gate, sealed_in FROM updates) u),
  (SELECT json_agg(s ORDER BY object) FROM (
    SELECT object, file, encode(header, 'escape') AS header, parts FROM spool_objects) s),
  (SELECT json_agg(client ORDER BY id) FROM inbox),
  (SELECT json_object_agg(name, (status, hold)) FROM clients),
  (SELECT json_object_agg(client, phase) FROM cohorts),
  extract(epoch FROM clock_timestamp())::float
"""


@dataclass(frozen=True, slots=True)
class Rows:
    """What is committed: of the round, its updates by client, the bodies, and the messages."""

    driver: dict
    gates: dict[str, float]
    round: dict
    updates: dict[str, dict]
    bodies: list[dict]
    inbox: list[str]
    clients: dict[str, dict]
    phases: dict[str, str]
    now: float

    @property
    def lease(self):
        """Whose turn it is."""
        return Lease(self.driver["epoch"], self.driver["holder"])

    @property
    def is_over(self):
        """Whether the round is."""
        return self.round["state"] in OVER

    @property
    def ledger(self):
        """What gates and the driver change."""
        return self.round, self.updates, self.bodies, self.inbox, self.clients, self.phases

    def bodies_of(self, file):
        return [each for each in self.bodies if each["file"] == file]


def file_of(client):
    return f"{RUN}.1.{client}"


def identity_of(name):
    return hashlib.sha256(name.encode()).hexdigest()


def total_of(updates):
    """The number that accepted updates add up to, by what they are."""
    named = {identity_of(name): sum(parts) for name, parts in NUMBERS.items()}
    return sum(named[each["identity"]] for each in updates.values())


class Gate:
    """A gate of the ledger.

    Attributes:
        accepted: what it has accepted, by client.
    """

    def __init__(self, url, name):
        self.ledger = Ledger(url)
        self.rows = self.ledger.lease_rows()
        self._lease = GateLease(name)
        self.ledger.fence(self._check)
        self.accepted = {}

    def _check(self, connection):
        self._lease.check(connection)  # looked up then: a test may take it away

    def close(self):
        self.rows.close()
        self.ledger.close()


@dataclass
class Number:
    """A `Partial` of one number."""

    value: int = 0

    def merge(self, other):
        self.value += other.value


@dataclass
class Work:
    """What a program calls: methods of its server, whose answers are compared with the rows.

    Args:
        gates: all that runs.
        actor: its name, which begins with its server's.
        answers: as of `support.ledger_actors.Work`.
    """

    gates: "Gates"
    actor: str
    answers: list[Callable[[Rows, Rows], None]] = field(default_factory=list)
    _made: int = 0

    @property
    def name(self):
        return self.actor[0]

    @property
    def server(self):
        return self.gates.servers[self.name]

    @property
    def ledger(self):
        return self.server.ledger

    # ---- gates ----

    def stay(self):
        """Renew the gate's row."""
        if not self.server.rows.stay(self.name)[0]:
            raise LeaseLostError

    def leave(self):
        self.server.rows.leave(self.name)

    def store(self, name):
        """Upload a body as `ObjectSpoolFile` does; its object, None if another is in the way."""
        client, header, numbers = name.split(".")[0], name.encode(), NUMBERS[name]
        body = self.ledger.body_object(file_of(client))
        if body is None or body.header != header:
            body = self._begin(file_of(client), header)
        if body is None:
            return None
        parts = [*body.parts]
        while len(parts) < PARTS:
            parts.append(self._part(numbers[len(parts)]))
            if not self.ledger.note_parts(body.object, parts):
                return None
        return body.object

    def give_up(self, name):
        """Upload a body, and drop it."""
        if (found := self.store(name)) is not None:
            self.ledger.give_up_body(found)

    def upload(self, *names):
        """Upload bodies, and accept them in one transaction."""
        stored = [self.store(name) for name in names]
        if None not in stored:
            self.accept(*names)

    def accept(self, *names):
        """Accept updates whose bodies this gate has stored, or believes to have."""
        if self.name in "ab":
            updates = [(update_of(name), CAPACITY) for name in names]
            results = self.ledger.accept_all(updates, check=check_whole)
            self._know(name.split(".")[0] for name in names)
        else:
            results = self.ledger.accept_at_gate(self.name, 0, [upload_of(name) for name in names])
        for name, result in zip(names, results, strict=True):
            client = name.split(".")[0]
            if isinstance(result, AcceptedUpdate):
                self.server.accepted[client] = sum(NUMBERS[name])
            if not isinstance(result, Refusal):
                self.gates.acknowledged[client] = identity_of(name)

    def tell(self):
        """Tell the driver something else, in a transaction that locks no round."""
        self.ledger.tell(self.name, 0, [Telling(Told.LEFT, "", SAYS)])

    def see(self, *clients):
        """Note that clients connected, as any server does."""
        self.ledger.saw(dict.fromkeys(clients, Seen(at=1.0)))

    def seal(self, *clients):
        """Store the sum of what the gate has accepted, or of these, and seal it."""
        accepted = self.server.accepted
        members = {each: accepted[each] for each in clients or accepted if each in accepted}
        if not members:
            return
        file = f"{RUN}.1..{self.actor}-{self._made}"
        body = self._begin(file, b"")
        self.ledger.note_parts(body.object, [self._part(sum(members.values()))])
        self.gates.sums[file] = self.name, set(members)
        if not self.ledger.seal(self.name, KEY, file, sorted(members)):
            del self.gates.sums[file]
            self._forget(self.ledger.bodies_of_file(file))
            return
        self._then(lambda _, rows: expect(_naming(rows, file), f"{file} was not sealed."))

    def _begin(self, file, header):
        self._made += 1
        body = BodyObject(object=f"{self.actor}-{self._made}", header=header, size_bytes=9)
        try:
            self.ledger.begin_body(file, *KEY, body)
        except Refusal:
            return None
        return body

    def _part(self, number):
        self._made += 1
        return StoredPart(number, f"{self.actor}-{self._made}")

    def _forget(self, bodies):
        self.ledger.forget_bodies([each.object for each in bodies])

    # ---- the driver ----

    def take_over(self):
        """Take the lease as a standby does, and read what was accepted; whether it was free."""
        if not self.server.take(self.name):
            return False
        self._know(each.client for each in self.ledger.accepted(*KEY))
        return True

    def read(self):
        """Read the inbox once."""
        clients = [each.telling.client for each in self.ledger.take_inbox()]
        self.gates.read.update((self.name, client) for client in clients if client != SAYS)
        self._know(clients)

        heard = self.gates.heard = self.gates.heard + Counter(clients)

        def check(before, rows):
            gone = Counter(before.inbox) - Counter(rows.inbox)
            expect(gone <= heard, f"{self.actor} read {heard}, deleted {gone}.")

        self._then(check)

    def strike_out(self):
        self.ledger.strike_out()

    def decline(self, client):
        """A member has declined its task, the driver believes."""
        self.ledger.set_phase(*KEY, client, "declined")

    def fail(self, client):
        """A member's task has failed, the driver believes."""
        self.ledger.set_phase(*KEY, client, "failed", failures=Failures(1, 1.0))

    def finish(self, *cut):
        """Close, commit the number that a `RoundSum` would add up, and delete the bodies.

        Args:
            cut: of earlier attempts, the bodies that each came to. What it has added stays, as in a
                checkpoint; each attempt reads the rows anew.
        """
        self.ledger.close_round(*KEY)
        folder = Folder(Number(), set())
        for bodies in (*cut, None):
            self._add(folder, self.ledger.accepted(*KEY), bodies)
        result = {
            "model_out": str(folder.partial.value), "strategy_state": None, "training": {},
            "evaluation": {}, "counts": True,
        }  # fmt: skip
        self.ledger.commit_round(*KEY, result, 1)
        self._then(lambda _, rows: expect(rows.is_over, f"The round is {rows.round}, not over."))
        self._forget(self.ledger.bodies_of_round(*KEY))

    def _add(self, folder, accepted, bodies):
        """Add the sums that rows name, and so many of the bodies of the rest."""
        for file, members in sums_of(accepted).items():
            sealed = self.gates.sums[file][1]
            try:
                folder.merge(Folder(self._number(file), {*sealed}), members)
            except IntegrityError:
                expect(False, f"{file} has {sealed}, the rows say {members}.")
        for row in [each for each in accepted if each.client not in folder.folded][:bodies]:
            folder.partial.merge(self._number(row.file))
            folder.folded.add(row.client)

    def _number(self, file):
        """The number in a body."""
        body = self.ledger.body_object(file)
        if not self.gates.drives(self.name):
            return Number()  # another driver may have ended the round: this one commits nothing
        expect(body is not None, f"{self.actor} misses {file}.")
        return Number(sum(part.crc32c for part in body.parts))

    def _know(self, clients):
        self.gates.known.setdefault(self.name, set()).update(clients)

    def _then(self, check):
        self.answers.append(check)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What several actors do at once.

    Args:
        programs: of each actor, by its name.
        stored: whole bodies that are there before.
        accepted: updates that are: by which gate, by name. Their bodies are stored, and the
            driver has yet to read of them.
        lease: "held" by `a`, or "expired".
        late: gates that the driver is to strike out.
        failures: of each client.
    """

    programs: dict[str, Callable[[Work], None]]
    stored: tuple[str, ...] = ()
    accepted: dict[str, str] = field(default_factory=dict)
    lease: str = "held"
    late: tuple[str, ...] = ()
    failures: int = 0


class Gates:
    """Two gates and two drivers of one ledger, in which schedules are run; ended by `close`.

    Args:
        database: a `PostgreSQL`.

    Attributes:
        sums: of gates: file → who sealed it, and its members.
        acknowledged: identities that were acknowledged, by client.
        known: of each driver, the clients whose updates it knows.
        read: how often each was read from the inbox.
    """

    def __init__(self, database):
        url = database.create("gates")
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

    def lease_of(self, name):
        """The lease that a driver believes to have."""
        return self.servers[name].lease

    def drives(self, name):
        """Whether it is a driver's turn."""
        return self.lease_of(name) == self._rows().lease

    def run(self, scenario, choose):
        """Run a scenario in one order, on new rows; returns the points.

        Raises:
            InvariantError: something does not hold.
        """
        self.set_up(scenario)
        self._last = self._rows()
        self._work = {name: Work(self, name) for name in scenario.programs}
        programs = {name: self._program(name, each) for name, each in scenario.programs.items()}
        points, self._ended = [], set()
        try:
            self.scheduler.run(programs, choose, points)
            expect(self._rows().ledger == self._last.ledger, "Rows changed without a commit.")
            self._check_end(self._last)
        except InvariantError as violation:
            raise InvariantError(str(violation), points) from violation
        return points

    def _begin(self, first):
        """A run whose first round is open, and a copy of its rows."""
        names = ", ".join(
            f"('{each}', 'active', 1)" for each in {name.split(".")[0] for name in NUMBERS}
        )
        self._execute(f"INSERT INTO clients (name, status, enrolled_at) VALUES {names}")
        first.take("a")
        run = {"id": RUN, "name": "", "spec": {}, "state": "running", "model": "old"}
        first.ledger.add_run(run, 1)
        row = {
            "run": RUN, "number": 1, "kind": "train", "opened_at": 0.0, "deadline_at": 60.0,
            "model_in": "old",
        }  # fmt: skip
        first.ledger.open_round(row, COHORT)
        self._execute(*(f"CREATE TABLE first_{each} AS SELECT * FROM {each}" for each in _TABLES))

    def set_up(self, scenario):
        """The rows as they were first, and what a scenario adds."""
        now = "extract(epoch FROM clock_timestamp())"
        expired = LEASE_S + 1 if scenario.lease == "expired" else 0
        ages = {name: GATE_S + 1 if name in scenario.late else 0 for name in "gh"}
        bodies = [*scenario.stored, *scenario.accepted]
        self._execute(
            *(f"DELETE FROM {each}" for each in (*_OTHERS, *reversed(_TABLES))),
            *(f"INSERT INTO {each} SELECT * FROM first_{each}" for each in _TABLES),
            f"UPDATE drivers SET renewed_at = {now} - {expired}",
            f"UPDATE clients SET failures = {scenario.failures}",
            *(f"INSERT INTO gates VALUES ('{each}', '', {now} - {ages[each]})" for each in ages),
            *(stored(name) for name in bodies),
        )
        for name, server in self.servers.items():
            server.ledger._read = {}
            if name in "gh":
                server.accepted = {}
            else:
                server.turn._lease = Lease(1, "a") if name == "a" else None
        self.sums, self.acknowledged, self.known, self.read = {}, {}, {"a": set()}, Counter()
        self.heard = Counter()
        self._last = self._rows()
        for name, gate in scenario.accepted.items():
            Work(self, gate).accept(name)

    def add_run(self, name):
        """Add a run like the first one; no scenario has one."""
        for table, column in (("runs", "id"), ("rounds", "run"), ("cohorts", "run")):
            row = f'jsonb_populate_record(r, \'{{"{column}": "{name}"}}\')'
            self._execute(f"INSERT INTO {table} SELECT ({row}).* FROM {table} r")

    def _execute(self, *statements):
        self.scheduler.database.execute("; ".join(statements))

    def _program(self, actor, program):
        def perform():
            work, name = self._work[actor], actor[0]
            try:
                program(work)
                self._ended.add(name)
            except LeaseLostError:
                pass  # then a server ends
            except sa.exc.DBAPIError as error:
                is_late = name in "ab" and self._last.lease != self.lease_of(name)
                expect(isinstance(error, sa.exc.IntegrityError) and is_late, f"{actor}: {error}")

        return perform

    # ---- what must hold ----

    def _look(self, actor):
        """Compare the rows with those before an actor's commit."""
        work, before, rows = self._work[actor], self._last, self._rows()
        self._last = rows
        if rows.ledger != before.ledger:
            self._check_right(work, rows)
        self._check_gates(work, before, rows)
        self._check_updates(work, before, rows)
        self._check_round(before, rows)
        self._check_bodies(before, rows)
        answers, work.answers = work.answers, []
        for compare in answers:
            compare(before, rows)

    def _check_right(self, work, rows):
        if work.name in "gh":
            expect(work.name in rows.gates, f"{work.actor} committed, though it was struck out.")
        else:
            lease = self.lease_of(work.name)
            expect(lease == rows.lease, f"{work.actor} committed by {lease}, not by {rows.lease}.")

    def _check_gates(self, work, before, rows):
        for name in before.gates.keys() - rows.gates.keys() - {work.name}:
            age_s = rows.now - before.gates[name]
            expect(age_s > GATE_S, f"{name} was struck out, its row is {age_s:.1f} s old.")

    def _check_round(self, before, rows):
        old, new = before.round, rows.round
        changes = new["state"] in NEXT[old["state"]] if new["state"] != old["state"] else new == old
        expect(changes, f"The round changed: {old}, then {new}.")
        if new["state"] == "committed":
            total = total_of(rows.updates)
            expect(new["model_out"] == str(total), f"Expected {total}, got {new['model_out']}.")

    def _check_updates(self, work, before, rows):
        added = rows.updates.keys() - before.updates.keys()
        for client in before.updates.keys() | added:
            old, new = before.updates.get(client), rows.updates.get(client)
            if old is None:
                self._check_added(client, new, before, rows)
            elif new != old:
                same = old["sealed_in"] is None and new == {**old, "sealed_in": new["sealed_in"]}
                expect(same and not before.is_over, f"{client} changed: {old}, then {new}.")
        expect(len(rows.updates) <= CAPACITY, f"Accepted {len(rows.updates)} of {CAPACITY}.")
        came = Counter(each for each in rows.inbox if each != SAYS) - Counter(before.inbox)
        told = added if work.name in "gh" else ()
        expect(came == Counter(told), f"{work.actor} accepted {added}, told {came}.")
        for file in {each["sealed_in"] for each in rows.updates.values()} - {None}:
            gate, members = self.sums.get(file, (work.name, set()))
            naming = _naming(rows, file)
            expect(naming == members, f"{file} has {members}, the rows say {naming}.")
            gates = {rows.updates[client]["gate"] for client in naming}
            expect(gates == {gate}, f"{file} of {gate} is named by updates of {gates}.")
        reported = {client for client, phase in rows.phases.items() if phase == "reported"}
        expect(reported == {*rows.updates}, f"Accepted {[*rows.updates]}, reported {reported}.")
        for client, identity in self.acknowledged.items():
            expect(
                rows.updates.get(client, {}).get("identity") == identity,
                f"{client} was acknowledged, and has {rows.updates.get(client)}.",
            )

    def _check_added(self, client, new, before, rows):
        state = before.round["state"]
        expect(state == "reporting", f"{client} was accepted in a round that is {state}.")
        expect(client in COHORT, f"{client} was accepted, and is no member.")
        held = [*rows.clients[client].values()]
        expect(held == ["active", None], f"{client} was accepted, and is {held}.")

    def _check_bodies(self, before, rows):
        files = Counter(each["file"] for each in rows.bodies)
        expect(all(count == 1 for count in files.values()), f"Of one file each: {files}.")
        if rows.is_over:
            return
        for client, update in rows.updates.items():
            found = rows.bodies_of(update["file"])
            expect(len(found) == 1, f"{client} was accepted, and its body is {found}.")
            [body] = found
            is_whole = len(body["parts"]) == PARTS
            is_its = identity_of(body["header"]) == update["identity"]
            expect(is_whole and is_its, f"{client} was accepted, and its body is {body}.")
            if client in before.updates:
                expect(body in before.bodies, f"{client} was accepted, and its body changed.")
            if update["sealed_in"]:
                expect(rows.bodies_of(update["sealed_in"]), f"{update['sealed_in']} is missing.")

    def _check_end(self, rows):
        twice = [each for each, times in self.read.items() if times > 1]
        expect(not twice, f"Messages of {twice} were read twice.")
        holder = rows.lease.holder
        if holder in self._ended:
            unknown = rows.updates.keys() - self.known[holder] - set(rows.inbox)
            expect(rows.is_over or not unknown, f"{holder} does not know of {unknown}.")
        expect(not any(each.answers for each in self._work.values()), "Answered uncommitted.")

    def _rows(self):
        found = self.scheduler.database.execute(_SNAPSHOT).fetchone()
        driver, gates, round_, updates, bodies, inbox, clients, phases, now = found
        return Rows(
            driver,
            gates or {},
            round_,
            updates or {},
            bodies or [],
            inbox or [],
            clients,
            phases,
            now,
        )


def _naming(rows, file):
    return {client for client, each in rows.updates.items() if each["sealed_in"] == file}


def check_whole(connection, update):
    """As of the driver, whose bodies here have so many parts."""
    gate_queues.lock_body(connection, update.file, update.identity, PARTS)


def update_of(name):
    client = name.split(".")[0]
    return AcceptedUpdate(
        run=RUN, round=1, client=client, identity=identity_of(name), file=file_of(client),
        size_bytes=9, weight=1.0, norm=1.0,
    )  # fmt: skip


def upload_of(name):
    return GateUpload(update=update_of(name), capacity=CAPACITY, parts=PARTS)


def stored(name):
    """A statement that stores a whole body."""
    parts = json.dumps([[number, str(place)] for place, number in enumerate(NUMBERS[name])])
    values = f"'{name}', '{file_of(name.split('.')[0])}', '{RUN}', 1, '{name}', 9, '{parts}', 1"
    return f"INSERT INTO spool_objects VALUES ({values})"
