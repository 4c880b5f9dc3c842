"""Gates and drivers of a run with buffers as actors, and what must hold after each commit.

As `support.gate_actors`, whose servers these are. A driver has the product's engine, restored from
the rows, and feeds it what it reads as `RoundDriver` does. An update is a word, "ann.1*1": the task
of ann in round 1, which counts one model later. After each commit the rows are read in one snapshot
and compared with those before:

- an update is added while the round in which it counts is `reporting`, by a client that works on
  its task and on no later one, since which no round was abandoned; its staleness is the number of
  models since, at most `MAX_STALENESS`; no client counts twice in a buffer;
- it never changes but in `sealed_in`; the rows that name a sum are the members sealed in it;
- the model of a committed buffer is that of exactly the rows that count in it;
- an answer agrees with the rows: a repeat has its row, and a buffer that was called full is;
- the engine of the driver has counted the rows of its open buffer, but for those of which its inbox
  still tells, and nobody is at work whose update counts already.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import sqlalchemy as sa

from fedloom.protocol.errors import Code, Refusal
from fedloom.server.engine import BufferConfig, Phase, RoundKind, RoundState, effects, events
from fedloom.server.ledger import AcceptedUpdate
from fedloom.server.ledger.replicas.batch_accepts import GateUpload
from fedloom.server.ledger.replicas.gate_queues import AcceptedHere, Told
from fedloom.server.ledger.replicas.lease_rows import LEASE_S, Lease, LeaseLostError
from fedloom.server.rounds import engines
from support.gate_actors import Gate
from support.interleavings import InvariantError, Scheduler
from support.ledger_actors import NEXT, RUN, Server, expect

CLIENTS = ("ann", "bob", "eve", "sam")
MAX_STALENESS = 1
CAPACITY = 2
CONFIG = BufferConfig(goal=99, quorum=1, concurrency=9, max_staleness=MAX_STALENESS)
"""A buffer closes when an actor says so, and there is always room for another client."""

_TABLES = ("clients", "runs", "models", "rounds", "cohorts", "populations", "drivers")
_OTHERS = ("updates", "gates", "inbox")

_SNAPSHOT = """
SELECT
  (SELECT to_json(d) FROM (SELECT epoch, holder FROM drivers) d),
  (SELECT json_object_agg(number, r) FROM (SELECT number, state, model_out FROM rounds) r),
  (SELECT json_object_agg(client || '.' || round, u) FROM (
    SELECT client, round, identity, counts_in, staleness, gate, sealed_in FROM updates) u),
  (SELECT json_agg(encode(content, 'escape')) FROM inbox),
  (SELECT json_object_agg(client || '.' || round, phase) FROM cohorts)
"""


@dataclass(frozen=True, slots=True)
class Rows:
    """What is committed: rounds by number; updates and phases by task, "client.round"."""

    driver: dict
    rounds: dict[str, dict]
    updates: dict[str, dict]
    inbox: list[AcceptedHere]
    phases: dict[str, str]

    def state(self, number):
        return self.rounds.get(str(number), {}).get("state")

    def counted(self, number):
        return {k: each for k, each in self.updates.items() if each["counts_in"] == number}


def word(client, origin, staleness):
    """An update as it counts."""
    return f"{client}.{origin}*{staleness}"


def _word(row):
    return word(row["client"], row["round"], row["staleness"])


def model_of(number, words):
    return f"{number}:{' '.join(sorted(words))}"


def _plan(number):
    """What the engine's parts need of a plan."""
    spec = SimpleNamespace(buffer_config=lambda: CONFIG, rounds=99, sites=False)
    return SimpleNamespace(kind=RoundKind.TRAIN, number=number, trained=number - 1, spec=spec)


def _select(candidates, count):
    return sorted(candidates)[:count]


@dataclass
class Work:
    """What a program calls: methods of its server, whose answers are compared with the rows."""

    buffers: "Buffers"
    actor: str
    answers: list[Callable[[Rows, Rows], None]] = field(default_factory=list)

    @property
    def name(self):
        return self.actor[0]

    @property
    def server(self):
        return self.buffers.servers[self.name]

    @property
    def ledger(self):
        return self.server.ledger

    # ---- gates ----

    def accept(self, *tasks):
        """Accept updates, each named "client.round", in one transaction."""
        uploads = [upload_of(each) for each in tasks]
        results = self.ledger.accept_at_gate(self.name, 0, uploads)
        for task, result in zip(tasks, results, strict=True):
            if isinstance(result, AcceptedUpdate):
                client, origin = task.split(".")
                counted = self.server.accepted.setdefault(result.counted, {})
                counted[client] = word(client, origin, result.staleness)
            self._then(lambda before, rows, t=task, r=result: _check_answer(t, r, before, rows))

    def seal(self):
        """Seal the sums of the buffers in which this gate has accepted updates."""
        for number, members in [*self.server.accepted.items()]:
            file = f"{self.actor}.{number}"
            self.buffers.sums[file] = members
            if not self.ledger.seal(self.name, (RUN, number), file, sorted(members)):
                del self.buffers.sums[file]

    # ---- the driver ----

    @property
    def engine(self):
        return self.buffers.engines[self.name]

    @property
    def plan(self):
        return self.buffers.plans[self.name]

    def take_over(self):
        """Take the lease as a standby does, and restore the engine; whether it was free."""
        if not self.server.take(self.name):
            return False
        self.restore()
        return True

    def restore(self):
        """As `RunDriver.start` does, between two buffers too."""
        row = self.ledger.open_round_of(RUN)
        number = self.ledger.run(RUN).last_round if row is None else row.number
        plan, ledger = _plan(number), self.ledger
        at_work = ledger.at_work(RUN, 1)
        members = [] if row is None else ledger.cohort(RUN, number)
        accepted = [] if row is None else ledger.accepted(RUN, number)
        stored = engines.StoredRound(row=row, members=members, accepted=accepted, at_work=at_work)
        self.buffers.plans[self.name] = plan
        self.buffers.engines[self.name] = engines.restore(
            plan, stored, select=_select, now=0.0, wall=0.0, available=(), devices_of=lambda _: 0
        )

    def read(self):
        """Read the inbox once."""
        for each in self.ledger.take_inbox():
            assert each.telling.kind is Told.ACCEPTED
            here = AcceptedHere.parse(each.telling.content)
            self._count(here.client, here.counted)

    def _count(self, client, counted):
        """As `RoundDriver.accepted` does; the client is free then."""
        if engines.lacks(self.engine, self.plan, client, counted):
            self._feed(events.UpdateAccepted(client))
            self._feed(events.Attended(client))

    def _feed(self, event):
        for effect in self.engine.handle(event, 0.0):
            match effect:
                case effects.Opened(cohort):
                    self.ledger.open_round(_row(self.plan.number), cohort)
                case effects.Recruited(client):
                    self.ledger.recruit(RUN, self.plan.number, client)

    def decline(self, client):
        """A client declines its task, which the engine has."""
        if (origin := self.engine.origin(client)) is not None and self.engine.waits_for(client):
            self.ledger.set_phase(RUN, origin, client, "declined")
            self._feed(events.OfferDeclined(client))
            self._feed(events.Attended(client))

    def close(self):
        """Commit the open buffer, and open the next one."""
        number = self.plan.number
        if self.engine.state is RoundState.REPORTING:
            self.engine.complete()  # as if its goal was reached
        if self.engine.state is RoundState.CLOSING:
            closed = self.ledger.close_round(RUN, number)
            words = self._words(self.ledger.accepted(RUN, number))
            result = {
                "model_out": model_of(number, words), "strategy_state": None, "training": {},
                "evaluation": {}, "counts": True,
            }  # fmt: skip
            self.ledger.commit_round(RUN, number, result, 1)
            for row in closed:
                self._count(row.client, number)
            self._feed(events.Committed())
        self.buffers.plans[self.name] = _plan(number + 1)
        self._feed(events.NextBuffer(number + 1, _select, last=False))

    def _words(self, accepted):
        """Of the sums that rows name, and of the bodies of the rest."""
        words, named = [], {}
        for row in accepted:
            if row.sealed_in is None:
                words.append(word(row.client, row.round, row.staleness))
            else:
                named.setdefault(row.sealed_in, set()).add(row.client)
        for file, members in named.items():
            sealed = self.buffers.sums[file]
            expect(sealed.keys() == members, f"{file} has {sealed}, the rows say {members}.")
            words += sealed.values()
        return words

    def abandon(self):
        """End the open buffer without a model, and open another one: all work has ended."""
        number = self.plan.number
        self._feed(events.Abort("by the operator"))
        self.ledger.abandon_round(RUN, number, "by the operator", "stopped")
        self.ledger.open_round(_row(number + 1), ["sam"])
        self.restore()

    def _then(self, check):
        self.answers.append(check)


@dataclass(frozen=True, slots=True)
class BufferScenario:
    """What several actors do at once: by their names, which begin with their servers'.

    Attributes:
        programs: of each actor, by its name.
        lease: "held" by `a`, or "expired".
    """

    programs: dict[str, Callable[[Work], None]]
    lease: str = "held"


class Buffers:
    """Two gates and two drivers of one ledger, in which schedules are run; ended by `close`.

    Round 1 is committed, and ann and bob still work on its task; round 2 reports, with eve and sam.

    Args:
        database: a `PostgreSQL`.

    Attributes:
        sums: of gates: file → the words of its members.
        engines: of each driver.
        plans: of each driver, its open round's.
    """

    def __init__(self, database):
        url = database.create("buffers")
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

    def run(self, scenario, choose):
        """Run a scenario in one order, on new rows; returns the points.

        Raises:
            InvariantError: something does not hold.
        """
        self.set_up(scenario)
        self._work |= {name: Work(self, name) for name in scenario.programs}
        programs = {name: self._program(name, each) for name, each in scenario.programs.items()}
        points = []
        try:
            self.scheduler.run(programs, choose, points)
            self._check_engine(self._last)
        except InvariantError as violation:
            raise InvariantError(str(violation), points) from violation
        return points

    def _begin(self, first):
        names = ", ".join(f"('{each}', 'active', 1)" for each in CLIENTS)
        self._execute(f"INSERT INTO clients (name, status, enrolled_at) VALUES {names}")
        first.take("a")
        spec = {"cohort": {"mode": "buffered"}}
        run = {"id": RUN, "name": "", "spec": spec, "state": "running", "model": "old"}
        first.ledger.add_run(run, 1)
        first.ledger.open_round(_row(1), ["ann", "bob"])
        first.ledger.close_round(RUN, 1)
        done = {
            "model_out": model_of(1, []), "strategy_state": None, "training": {}, "evaluation": {},
            "counts": True,
        }  # fmt: skip
        first.ledger.commit_round(RUN, 1, done, 1)
        first.ledger.open_round(_row(2), ["eve", "sam"])
        self._execute(*(f"CREATE TABLE first_{each} AS SELECT * FROM {each}" for each in _TABLES))

    def set_up(self, scenario):
        """The rows as they were first."""
        now = "extract(epoch FROM clock_timestamp())"
        expired = LEASE_S + 1 if scenario.lease == "expired" else 0
        self._execute(
            *(f"DELETE FROM {each}" for each in (*_OTHERS, *reversed(_TABLES))),
            *(f"INSERT INTO {each} SELECT * FROM first_{each}" for each in _TABLES),
            f"UPDATE drivers SET renewed_at = {now} - {expired}",
            *(f"INSERT INTO gates VALUES ('{each}', '', {now})" for each in "gh"),
        )
        for name, server in self.servers.items():
            if name in "gh":
                server.accepted = {}
            else:
                server.turn._lease = Lease(1, "a") if name == "a" else None
        self.sums, self.engines, self.plans = {}, {}, {}
        self._work = {"a": Work(self, "a")}
        self._work["a"].restore()
        self._last = self._rows()

    def add_run(self, name):
        """Add a run like the first one; no scenario has one."""
        for table, column in (("runs", "id"), ("rounds", "run"), ("cohorts", "run")):
            row = f'jsonb_populate_record(r, \'{{"{column}": "{name}"}}\')'
            self._execute(f"INSERT INTO {table} SELECT ({row}).* FROM {table} r")

    def _execute(self, *statements):
        self.scheduler.database.execute("; ".join(statements))

    def _program(self, actor, program):
        def perform():
            work = self._work[actor]
            try:
                program(work)
            except LeaseLostError:
                pass  # then a server ends
            except sa.exc.DBAPIError as error:
                is_late = work.name in "ab" and not self._drives(work.name)
                expect(isinstance(error, sa.exc.IntegrityError) and is_late, f"{actor}: {error}")

        return perform

    def _drives(self, name):
        return self.servers[name].lease == Lease(**self._rows().driver)

    # ---- what must hold ----

    def _look(self, actor):
        """Compare the rows with those before an actor's commit."""
        work, before, rows = self._work[actor], self._last, self._rows()
        self._last = rows
        self._check_updates(before, rows)
        self._check_rounds(before, rows)
        answers, work.answers = work.answers, []
        for compare in answers:
            compare(before, rows)

    def _check_rounds(self, before, rows):
        for number, row in rows.rounds.items():
            old, state = before.rounds.get(number), before.state(number)
            changes = row["state"] in NEXT[state] if row["state"] != state else row == old
            expect(changes, f"Round {number} changed: {old}, then {row}.")
            if row["state"] == "committed":
                model = model_of(number, map(_word, rows.counted(int(number)).values()))
                expect(row["model_out"] == model, f"Expected {model}, got {row['model_out']}.")

    def _check_updates(self, before, rows):
        for task, new in rows.updates.items():
            old = before.updates.get(task)
            if old is None:
                self._check_added(task, new, before)
            elif new != old:
                same = old["sealed_in"] is None and new == {**old, "sealed_in": new["sealed_in"]}
                state = before.state(old["counts_in"])
                expect(same and state in ("reporting", "closing"), f"{task}: {old}, then {new}.")
        for number in map(int, rows.rounds):
            counted = rows.counted(number).values()
            expect(len(counted) <= CAPACITY, f"Buffer {number} has {len(counted)} of {CAPACITY}.")
            twice = len({each["client"] for each in counted}) < len(counted)
            expect(not twice, f"A client is in buffer {number} twice: {counted}.")
        for file in {each["sealed_in"] for each in rows.updates.values()} - {None}:
            naming = {
                e["client"]: _word(e) for e in rows.updates.values() if e["sealed_in"] == file
            }
            expect(self.sums[file] == naming, f"{file} is {self.sums[file]}, rows say {naming}.")

    def _check_added(self, task, new, before):
        client, origin, counted = new["client"], new["round"], new["counts_in"]
        state = before.state(counted)
        expect(state == "reporting", f"{task} was accepted in a round that is {state}.")
        stale = new["staleness"]
        expect(stale == counted - origin, f"{task} counts in {counted}, {stale} models behind.")
        expect(stale <= MAX_STALENESS, f"{task} was accepted, {stale} models behind.")
        between = {before.state(number) for number in range(origin, counted)}
        expect(between <= {"committed"}, f"{task} counts in {counted}, rounds before {between}.")
        phase = before.phases.get(task)
        expect(phase == "offered", f"{task} was accepted, and its client has {phase}.")
        later = [t for t in before.phases if t > task and t.split(".")[0] == client]
        expect(not later, f"{task} was accepted, and its client works on {later}.")

    def _check_engine(self, rows):
        """Compare the driver's engine with the rows, once nobody does anything."""
        holder = Lease(**rows.driver).holder
        engine, plan = self.engines.get(holder), self.plans.get(holder)
        if engine is None or engine.state is not RoundState.REPORTING:
            return
        number, phases = plan.number, engine.cohort.phases
        if rows.state(number) != "reporting":
            return  # it died before it opened it, or closed it
        reported = {client for client, phase in phases.items() if phase is Phase.REPORTED}
        counted = {each["client"] for each in rows.counted(number).values()}
        told = {each.client for each in rows.inbox if each.counted == number}
        expect(reported <= counted, f"{holder} counts {reported}, the rows {counted}.")
        expect(counted - reported <= told, f"{holder} counts {reported}, the rows {counted}.")
        for client in engine.cohort.unfinished():
            done = rows.updates.get(f"{client}.{engine.origin(client)}")
            known = done is None or (client in told and done["counts_in"] == number)
            expect(known, f"{holder} waits for {client}, which has {done}.")

    def _rows(self):
        found = self.scheduler.database.execute(_SNAPSHOT).fetchone()
        driver, rounds, updates, inbox, phases = found
        told = [AcceptedHere(**json.loads(each)) for each in inbox or ()]
        return Rows(driver, rounds, updates or {}, told, phases)


def _check_answer(task, result, before, rows):
    """Check an answer to a client."""
    row = rows.updates.get(task)
    match result:
        case AcceptedUpdate():
            holds = row is not None and task not in before.updates
        case None:
            holds = row is not None and task in before.updates
        case Refusal(code=Code.BUSY):
            full = [n for n in map(int, rows.rounds) if len(rows.counted(n)) == CAPACITY]
            holds = row is None and any(rows.state(number) == "reporting" for number in full)
        case Refusal(code=Code.ROUND_CLOSED):
            holds = row is None  # which buffer was open when it looked, the rows do not say
        case Refusal(code=Code.STALE_ROUND | Code.NOT_IN_COHORT):
            holds = row is None
        case _:
            holds = False
    expect(holds, f"{task} was answered {result!r}, has {row}.")


def upload_of(task, run=RUN):
    client, origin = task.split(".")
    update = AcceptedUpdate(
        run=run, round=int(origin), client=client, identity=task, file="", size_bytes=0, weight=1.0,
        norm=1.0,
    )  # fmt: skip
    return GateUpload(update=update, capacity=CAPACITY, parts=0, max_staleness=MAX_STALENESS)


def _row(number):
    return {
        "run": RUN, "number": number, "kind": "train", "opened_at": 0.0, "deadline_at": 60.0,
        "model_in": f"model {number}",
    }  # fmt: skip
