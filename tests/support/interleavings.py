"""Runs threads that use one PostgreSQL in every order of their statements, one step at a time.

An actor is a thread. It is parked before each SQL statement and before each commit; a step lets one
of them go on until it is parked again, has ended, or waits for a lock that another one holds, which
the database says (`pg_blocking_pids`). So one actor runs at a time, and the list of who made which
step, the schedule, repeats a run. A schedule is written as `old*4 new*7 old!`, where `old!` is the
death of `old` at the place where it was parked: its connection is closed, and it never continues.

Where several actors wait for one row, the database draws who gets it first: of the schedules that
lead there, a few cannot be repeated.

`explore` tries schedules by their number of interventions, fewest first: an actor is preempted,
though it could go on, or dies. Most faults need one or two (Musuvathi and Qadeer, Iterative context
bounding, PLDI 2007). `walk` draws one schedule, with any number of them.
"""

import random
import re
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby

import psycopg
import sqlalchemy as sa

from support.patience import PATIENCE_S

_GLANCE_S = 0.004
"""Time that a statement may take before the database is asked whether it waits for a lock."""

_DEATH = 0.05
_SWITCH = 0.3
"""Probabilities of each step of a walk."""


COMMIT = "COMMIT"
"""What an actor is about to do before it commits."""


class _Died(BaseException):
    """Ends the thread of an actor; no `except Exception` of the product stops it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One step of a schedule: who makes it, and whether it dies instead."""

    name: str
    dies: bool = False

    def __str__(self):
        return f"{self.name}!" if self.dies else self.name


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a run at which something was chosen.

    Attributes:
        costs: interventions that each possible choice takes, 0 or 1.
        chosen: one of them.
        at: what the actor was about to do.
    """

    costs: dict[Choice, int]
    chosen: Choice
    at: str


def written(schedule):
    """A schedule as text."""
    groups = [(each, len(list(same))) for each, same in groupby(schedule)]
    return " ".join(f"{each}*{count}" if count > 1 else str(each) for each, count in groups)


def parse(text):
    """A schedule from its text."""
    found = []
    for part in text.split():
        name, death, count = re.fullmatch(r"(\w+)(!?)(?:\*(\d+))?", part).groups()
        found += [Choice(name, bool(death))] * int(count or 1)
    return tuple(found)


class InvariantError(AssertionError):
    """Something that no order of steps may lead to.

    Attributes:
        schedule: that led to it, as text; `follow(parse(...))` repeats it.
    """

    def __init__(self, message, points=()):
        self.schedule = written(point.chosen for point in points)
        steps = "".join(f"\n  {point.chosen}: {point.at[:120]}" for point in points)
        super().__init__(f"{message}\nschedule: {self.schedule}{steps}" if points else message)


class Actor:
    """A thread whose statements are let go one by one.

    Attributes:
        at: what it is about to do.
        state: "parked", "blocked" (by a lock), "ended" or "dead".
        commits: whether the step that it makes commits.
        frees: whether that step ends a transaction, whose locks others may have waited for.
        error: what its program raised.
    """

    def __init__(self, name, program):
        self.name, self.at, self.state = name, "", "parked"
        self.pid, self.commits, self.frees, self.error = 0, False, False, None
        self._dies = False
        self._go, self.parked = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._work, args=(program,), name=name)

    def _work(self, program):
        _here.actor = self
        try:
            program()
            self.state = "ended"
        except _Died:
            self.state = "dead"
        except BaseException as error:  # noqa: BLE001 - reported by the thread that schedules
            self.error, self.state = error, "ended"
        self.frees = True
        self.parked.release()

    def pause(self, connection, at):
        """Park in the actor's thread, until a step is made."""
        self.at, self.pid = at, connection.connection.dbapi_connection.info.backend_pid
        self.parked.release()
        self._go.acquire()
        if self._dies:
            connection.invalidate()  # closes it
            raise _Died

    def let_go(self, *, dies):
        self.commits = self.at == COMMIT and not dies
        self.frees, self._dies = self.commits or dies, dies
        self._go.release()


_here = threading.local()


class Scheduler:
    """Lets actors make steps.

    Args:
        url: of the database, as psycopg takes it.

    Attributes:
        rewrite: changes the text of each statement of an actor, which is one line.
        on_commit: called with an actor's name after each of its commits.
    """

    def __init__(self, url):
        self.database = psycopg.connect(url, autocommit=True)
        self.rewrite = lambda statement: statement
        self.on_commit = lambda name: None

    def close(self):
        self.database.close()

    def watch(self, engine):
        """Park actors before the statements and commits of an engine.

        Call this last: what listens to commits before is a part of the transaction.
        """
        sa.event.listen(engine, "before_cursor_execute", self._before_statement, retval=True)
        sa.event.listen(engine, "commit", self._before_commit)
        sa.event.listen(engine, "rollback", self._before_rollback)

    def _before_statement(self, connection, _cursor, statement, parameters, *_):
        if (actor := getattr(_here, "actor", None)) is not None:
            statement = self.rewrite(" ".join(statement.split()))
            actor.pause(connection, statement)
        return statement, parameters

    def _before_commit(self, connection):
        if (actor := getattr(_here, "actor", None)) is not None:
            actor.pause(connection, COMMIT)

    def _before_rollback(self, _connection):
        if (actor := getattr(_here, "actor", None)) is not None:
            actor.frees = True

    def run(self, programs, choose, points):
        """Run actors to their ends.

        Args:
            programs: what each does, by its name.
            choose: called with the costs of the choices; returns one.
            points: a list to which each step is appended.

        Raises:
            InvariantError: actors wait for each other.
            Exception: what `on_commit` or a program raised.
        """
        actors = [Actor(name, program) for name, program in programs.items()]
        current = None
        try:
            for actor in actors:
                actor.thread.start()
                self._wait(actor, actors)
            _raise_error(actors)
            while costs := _costs(actors, current):
                chosen = choose(costs)
                current = next(each for each in actors if each.name == chosen.name)
                points.append(Point(costs, chosen, current.at))
                self._step(current, actors, dies=chosen.dies)
            if any(each.state == "blocked" for each in actors):
                raise InvariantError("Actors wait for locks of each other.")
        finally:
            self._end(actors)

    def _step(self, actor, actors, *, dies=False):
        pid = actor.pid
        actor.let_go(dies=dies)
        self._wait(actor, actors)
        while dies and self._holds_locks(pid):
            pass  # its session ends soon
        freed = actor.frees
        while freed:
            waited = [each for each in actors if each.state == "blocked"]
            for each in waited:
                self._wait(each, actors)
            freed = any(each.state != "blocked" and each.frees for each in waited)
        _raise_error(actors)
        if actor.commits:
            self.on_commit(actor.name)

    def _holds_locks(self, pid):
        query = "SELECT count(*) FROM pg_locks WHERE pid = %s"
        return self.database.execute(query, [pid]).fetchone()[0]

    def _wait(self, actor, actors):
        """Wait until an actor is parked, has ended, or waits for a lock."""
        deadline = time.monotonic() + PATIENCE_S
        while not actor.parked.acquire(timeout=_GLANCE_S):
            assert time.monotonic() < deadline, f"{actor.name} hangs: {actor.at}"
            query = "SELECT unnest(pg_blocking_pids(%s))"
            by = {pid for (pid,) in self.database.execute(query, [actor.pid])}
            if any(each.pid in by for each in actors):  # and not only the autovacuum, say
                actor.state = "blocked"
                return
        if actor.state == "blocked":
            actor.state = "parked"

    def _end(self, actors):
        """End what still runs after a violation."""
        while left := [each for each in actors if each.state in ("parked", "blocked")]:
            for each in left:
                if each.state == "parked":
                    each.let_go(dies=True)
                self._wait(each, actors)
        for each in actors:
            each.thread.join()


def _raise_error(actors):
    for each in actors:
        if each.error is not None:
            raise each.error


def _costs(actors, current):
    """The possible choices: to switch from an actor that can go on is an intervention.

    An actor that dies within a transaction leaves what it leaves by dying before its commit.
    """
    parked = [each for each in actors if each.state == "parked"]
    stays = current in parked
    costs = {}
    if stays:
        costs[Choice(current.name)] = 0
    for each in parked:
        costs.setdefault(Choice(each.name), int(stays))
        if each.at == COMMIT and (not stays or each is current):
            costs[Choice(each.name, dies=True)] = 1
    return costs


def follow(schedule):
    """Chooses as a schedule says; after its end, or where it cannot, without interventions."""
    steps = iter(schedule)

    def choose(costs):
        nonlocal steps
        chosen = next(steps, None)
        if chosen not in costs:
            chosen, steps = next(iter(costs)), iter(())
        return chosen

    return choose


def explore(run, *, interventions, limit, seed=0):
    """Run all schedules with at most that many interventions, the fewest first.

    Schedules of as many interventions are in an order drawn by the seed, so that a limit cuts off
    no certain part of them.

    Args:
        run: called with a `choose`; returns the points.
        interventions: of a schedule.
        limit: of schedules.
        seed: of the order.

    Yields:
        For each schedule that was run, its number of interventions.
    """
    draw, waiting = random.Random(seed), defaultdict(list, {0: [()]})
    for _ in range(limit):
        cost = next((each for each in range(interventions + 1) if waiting[each]), None)
        if cost is None:
            return
        same = waiting[cost]
        place = draw.randrange(len(same))
        same[place], same[-1] = same[-1], same[place]
        prefix = same.pop()
        points = run(follow(prefix))
        schedule = tuple(point.chosen for point in points)
        repeated = schedule[: len(prefix)] == prefix  # else another actor got a lock than before
        for place in range(len(prefix), len(points) if repeated else 0):
            for other, more in points[place].costs.items():
                if other != schedule[place]:
                    waiting[cost + more].append((*schedule[:place], other))
        yield cost


def walk(run, seed):
    """Run a schedule that is drawn step by step."""
    draw, last = random.Random(seed), None

    def choose(costs):
        nonlocal last
        dies = draw.random() < _DEATH
        those = [each for each in costs if each.dies is dies] or list(costs)
        if last not in those or draw.random() < _SWITCH:
            last = draw.choice(those)
        return last

    return run(choose)
