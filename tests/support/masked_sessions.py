"""A masked round with everything around the engine: devices, a ledger, kills of the server.

`Device` is written from the protocol's rules for devices and knows nothing of the engine: it raises
`AssertionError` where a real one would refuse. `Book` holds what a ledger holds; a killed server is
rebuilt from it alone. `Stage` passes messages between them.
"""

from collections import deque
from dataclasses import dataclass, field

from fedloom.server.engine import (
    Abandon,
    AbandonSession,
    AgreementStored,
    Attended,
    BodiesFrozen,
    BodyStored,
    Close,
    ClosingStored,
    Committed,
    ForwardShares,
    Freeze,
    MaskedConfig,
    MaskedRound,
    OpenSessions,
    Phase,
    Ready,
    Resend,
    RevealStored,
    RoundState,
    SendClosing,
    SendSignatures,
    SendSurvivors,
    SessionSnapshot,
    SessionState,
    SharesStored,
    Unmask,
    Unmasked,
    Wake,
    uniform,
)

SHARE, BODY, AGREE, REVEAL, CLOSED = "share", "body", "agree", "reveal", "closed"
EVENT = {
    SHARE: SharesStored,
    BODY: BodyStored,
    AGREE: AgreementStored,
    REVEAL: RevealStored,
    CLOSED: ClosingStored,
}
OPEN = (SessionState.SHARING, SessionState.MASKING)


class KillError(Exception):
    """The server was killed at a crossing."""


def needed(members):
    """The least integer above two thirds of so many, by counting."""
    return next(t for t in range(members + 1) if 3 * t > 2 * members)


def in_order(_, names, group=4):
    """Sessions of names in order, their sizes as the specification wants them."""
    number = -(-len(names) // group)
    sizes = [len(names) // number + (n < len(names) % number) for n in range(number)]
    starts = [sum(sizes[:n]) for n in range(number)]
    return [names[start : start + size] for start, size in zip(starts, sizes, strict=True)]


@dataclass
class Device:
    """A member that follows the rules; `stops` names the message that it does not send."""

    name: str
    stops: str = ""
    roster: tuple = ()
    u2: tuple = ()
    signed: tuple = ()
    sent: dict = field(default_factory=dict)
    revealed_on: tuple = ()
    proof: tuple = ()

    def gets(self, kind, content):
        """Take a message of the server; return the kind of the answer, or None."""
        answer = getattr(self, f"_{kind}")(content)
        return None if answer == self.stops else answer

    def _roster(self, members):
        assert self.name in members
        assert self.roster in ((), members), "a second roster"
        self.roster = members
        return SHARE

    def _shared(self, u2):
        assert {self.name} <= set(u2) <= set(self.roster)
        assert len(u2) >= needed(len(self.roster))
        assert self.u2 in ((), u2), "a second U2"
        self.u2 = u2
        return BODY

    def _survivors(self, u3):
        assert {self.name} <= set(u3) <= set(self.u2)
        assert len(u3) >= needed(len(self.roster))
        assert self.signed in ((), u3), "a second U3"
        assert CLOSED not in self.sent, "asked to agree after it gave up"
        self.signed = u3
        return AGREE

    def _signatures(self, signers):
        assert set(signers) <= set(self.signed)
        assert len(set(signers)) >= needed(len(self.roster))
        self.revealed_on = self.signed
        return REVEAL

    def _abandoned(self, _):
        return None if self.signed else CLOSED

    def _closing(self, closed):
        assert len(set(closed)) >= needed(len(self.roster))
        assert not self.revealed_on, "closed after a reveal"
        self.proof = closed


@dataclass
class Book:
    """What is durable."""

    state: RoundState = RoundState.REPORTING
    sessions: list = field(default_factory=list)
    messages: set = field(default_factory=set)  # (session, kind, client)
    failed: set = field(default_factory=set)
    deadline: float = 0.0

    def open(self, rosters, _session_s):
        """Store the sessions of the round."""
        self.sessions = [
            {
                "state": SessionState.SHARING,
                "members": members,
                "width": width,
                **dict.fromkeys(("shared", "masked", "revealed"), ()),
                "reason": "",
            }
            for width, members in rosters
        ]

    def store(self, number, state, **columns):
        """Store the next state of a session."""
        if state is SessionState.FROZEN:
            columns = {"masked": tuple(sorted(self.of(number, BODY)))}
        self.sessions[number].update(columns, state=state)

    def add(self, number, kind, client):
        """Store a member's message."""
        self.messages.add((number, kind, client))

    def reopen(self):
        """Read all of it again: nothing, in memory."""

    def of(self, number, kind):
        """The members whose message of this kind is stored."""
        return {client for n, k, client in self.messages if (n, k) == (number, kind)}

    def snapshot(self, number, now):
        """A session as the engine takes it."""
        row = self.sessions[number]
        kind = {
            SessionState.SHARING: SHARE,
            SessionState.MASKING: BODY,
            SessionState.AGREEING: AGREE,
            SessionState.REVEALING: REVEAL,
        }.get(row["state"])
        heard = self.of(number, kind) if kind else set()
        signed = self.of(number, AGREE) & set(row["masked"])
        return SessionSnapshot(
            state=row["state"],
            members=row["members"],
            width_class=row["width"],
            left_s=self.deadline - now,
            shared=row["shared"],
            masked=row["masked"],
            signed=() if row["state"] is SessionState.AGREEING else signed,
            heard=heard,
            revealed=row["revealed"],
            closed=self.of(number, CLOSED) - signed,
            failed=self.failed,
            reason=row["reason"],
        )


class Stage:
    """Plays one round.

    Args:
        devices: by name.
        config: of the round.
        kill_at: the number of the crossing at which the server is killed; None for none.
        divide: the sessions of a class.
        width: of a device's name.
        book: that holds what is durable; in memory by default.
    """

    def __init__(
        self, devices, config, *, kill_at=None, divide=None, width=lambda _: "", book=None
    ):
        self.devices = devices
        self.config = config
        self.book = book or Book()
        self.now = 0.0
        self.crossings = 0
        self.kill_at = kill_at
        self.divide = divide or (lambda c, names: in_order(c, names, config.group))
        self.width = width
        self.wire = []  # (device, kind) on its way to the server
        self.unmasked = []  # each request for a sum that came to its end
        self.ended = None
        self._queue, self._performs = deque(), False
        self.names = sorted(devices)
        self.engine = MaskedRound(
            config, select=uniform(0, 1), divide=self.divide, now=0.0, available=self.names
        )
        self.feed(Wake())

    # ---- the server --------------------------------------------------------------------------

    def cross(self):
        """Pass a place at which the server may be killed."""
        self.crossings += 1
        if self.crossings == self.kill_at:
            raise KillError

    def feed(self, event):
        """Feed an event and perform its effects, over a restart if the server is killed."""
        try:
            self._feed(event)
        except KillError:
            self.restart()

    def _feed(self, event):
        before = {s.number: s.state for s in self.engine.sessions}
        effects = list(self.engine.handle(event, self.now))
        order = list(SessionState)
        for session in self.engine.sessions:  # never back
            was = before.get(session.number, SessionState.SHARING)
            assert order.index(session.state) >= order.index(was)
        assert self.engine.wake_at is None or self.engine.wake_at > self.now
        self._queue += effects  # those of an event that an effect feeds come after the others
        if not self._performs:
            self._performs = True
            while self._queue:
                self._perform(self._queue.popleft())
            self._performs = False

    def _perform(self, effect):  # noqa: C901, PLR0912, PLR0915 - one case for each effect
        match effect:
            case OpenSessions(rosters):
                assert not self.book.sessions
                self.cross()
                self.book.open(rosters, self.config.session_s)
                self.book.state = RoundState.MASKING
                self.book.deadline = self.now + self.config.session_s
                self.cross()
                for _, members in rosters:
                    for name in members:
                        self._send(name, "roster", members)
            case ForwardShares(number, shared):
                self._store(number, SessionState.MASKING, shared=shared)
                self._to(shared, "shared", shared)
            case Freeze(number):
                self._store(number, SessionState.FROZEN)
                for client in self.book.sessions[number]["masked"]:
                    self._feed(BodyStored(client))
                self._feed(BodiesFrozen(number))
            case SendSurvivors(number, masked):
                self._check_barrier()
                assert masked == self.book.sessions[number]["masked"]
                self._store(number, SessionState.AGREEING)
                self._to(masked, "survivors", masked)
            case SendSignatures(number, signers, to):
                assert set(signers) <= self.book.of(number, AGREE)
                if self.book.sessions[number]["state"] is SessionState.AGREEING:
                    self._store(number, SessionState.REVEALING)
                self._to(to, "signatures", signers)
            case Unmask(number, revealed):
                row = self.book.sessions[number]
                assert set(revealed) <= self.book.of(number, REVEAL) & set(row["masked"])
                assert len(revealed) >= needed(len(row["members"]))
                self._store(number, SessionState.UNMASKING, revealed=revealed)
                self.unmasked.append(number)
                self._store(number, SessionState.DONE)
                self._feed(Unmasked(number))
            case AbandonSession(number, reason):
                assert self.book.sessions[number]["state"] is not SessionState.DONE
                self._store(number, SessionState.ABANDONED, reason=reason)
                self._to(self.book.sessions[number]["members"], "abandoned", reason)
            case SendClosing(number, closed):
                assert self.book.sessions[number]["state"] is SessionState.ABANDONED
                self._to(self.book.sessions[number]["members"], "closing", closed)
            case Resend(number, client):
                self._resend(number, client)
            case Close():
                self.cross()
                self.book.state = RoundState.CLOSING
                self.cross()
                self.ended = RoundState.COMMITTED
                self._feed(Committed())
            case Abandon(_):
                self.cross()
                self.book.state = self.ended = RoundState.ABANDONED

    def _store(self, number, state, **columns):
        self.cross()
        self.book.store(number, state, **columns)
        self.cross()

    def _check_barrier(self):
        """All of the round's sessions are frozen or abandoned, and what is left is enough."""
        rows = self.book.sessions
        assert not [row for row in rows if row["state"] in OPEN]
        left = [row for row in rows if row["state"] is not SessionState.ABANDONED]
        assert sum(len(row["masked"]) for row in left) >= self.config.quorum

    def _to(self, clients, kind, content):
        for name in clients:
            self._send(name, kind, content)

    def _send(self, name, kind, content):
        if name not in self.book.failed:
            answer = self.devices[name].gets(kind, content)
            if answer is not None:
                self.devices[name].sent[answer] = True
                self.wire.append((name, answer))

    def _resend(self, number, client):
        """The last message of a session to a member, from what is stored."""
        row = self.book.sessions[number]
        members, signers = row["members"], tuple(sorted(self.book.of(number, AGREE)))
        match row["state"]:
            case SessionState.SHARING:
                self._send(client, "roster", members)
            case SessionState.MASKING if client in row["shared"]:
                self._send(client, "roster", members)
                self._send(client, "shared", row["shared"])
            case SessionState.AGREEING if client in row["masked"]:
                self._send(client, "survivors", row["masked"])
            case SessionState.REVEALING if client in row["masked"]:
                self._send(client, "survivors", row["masked"])
                if client in signers:
                    self._send(client, "signatures", signers)
            case SessionState.ABANDONED:
                closed = tuple(sorted(self.book.of(number, CLOSED)))
                enough = len(closed) >= needed(len(members))
                kind, content = ("closing", closed) if enough else ("abandoned", row["reason"])
                self._send(client, kind, content)

    def restart(self):
        """A new engine from the book; every member reconnects."""
        self.kill_at, self._performs = None, False
        self._queue.clear()
        self.book.reopen()
        states = (RoundState.REPORTING, RoundState.MASKING, RoundState.CLOSING)
        if self.book.state in states:
            failed = dict.fromkeys(self.book.failed, Phase.FAILED)
            self.engine = MaskedRound.rebuild(
                self.config,
                select=uniform(0, 1),
                divide=self.divide,
                state=self.book.state,
                cohort=dict.fromkeys(self.names, Phase.OFFERED) | failed,
                sessions=[self.book.snapshot(n, self.now) for n in range(len(self.book.sessions))],
                deadline_left_s=self.config.deadline_s,
                now=self.now,
            )
            self._feed(Wake())
        for name in self.names:
            if name not in self.book.failed and self.devices[name].stops != "ready":
                self._feed(Attended(name))
                if self.engine.state is RoundState.REPORTING:
                    self._feed(Ready(name, self.width(name)))

    # ---- the devices -------------------------------------------------------------------------

    def deliver(self, place=0, *, again=False):
        """A message reaches the server: it is stored, then the engine hears of it."""
        name, kind = self.wire[place]
        if not again:
            del self.wire[place]
        try:
            if self._take(name, kind):
                self._feed(EVENT[kind](name))
        except KillError:
            self.restart()

    def _take(self, name, kind):
        session = self.engine.session_of(name)
        if session is None:
            return False
        row = self.book.sessions[session.number]
        if kind == BODY and row["state"] is not SessionState.MASKING:
            return False  # the ledger refuses it
        self.cross()
        self.book.add(session.number, kind, name)
        self.cross()
        return True

    def ready(self):
        """Every device that will is ready."""
        for name in self.names:
            if self.devices[name].stops != "ready":
                self.feed(Ready(name, self.width(name)))

    def run_out(self):
        """Deliver everything, and let time pass until the round is over."""
        steps = 0
        while self.wire or self.engine.wake_at is not None:
            steps += 1
            assert steps < 100_000
            if self.wire:
                self.deliver()
            else:
                self.now = self.engine.wake_at
                self.feed(Wake())
        assert self.engine.state.is_over
        self.check_end()

    def result(self):
        """Who is in the sum of each session, and how the round ended."""
        sums = [
            row["masked"] if row["state"] is SessionState.DONE else () for row in self.book.sessions
        ]
        return self.ended, sums

    def check_end(self):
        """What holds of every round that is over."""
        ended, sums = self.result()
        counted = [client for members in sums for client in members]
        assert len(counted) == len(set(counted))
        assert self.engine.state is ended
        enough = len(counted) >= self.config.quorum
        assert ended is RoundState.ABANDONED or enough
        done = [n for n, row in enumerate(self.book.sessions) if row["state"] is SessionState.DONE]
        assert sorted(set(self.unmasked)) == done
        if ended is RoundState.COMMITTED:
            phases = self.engine.cohort.phases
            assert {c for c, phase in phases.items() if phase is Phase.REPORTED} == set(counted)
        for number, row in enumerate(self.book.sessions):
            assert row["state"] in (SessionState.DONE, SessionState.ABANDONED)
            for client in row["members"]:
                device = self.devices[client]
                if device.revealed_on:
                    assert device.revealed_on == row["masked"]
                assert not (device.proof and self.book.of(number, REVEAL))


def config(goal, **more):
    """Settings of a small masked round."""
    found = {
        "quorum": 3, "group": 4, "min_group": 3, "phase_s": 10.0, "upload_s": 20.0,
        "session_s": 100.0, "patience_s": 5.0,
    }  # fmt: skip
    return MaskedConfig(goal=goal, deadline_s=1000.0, **(found | more))
