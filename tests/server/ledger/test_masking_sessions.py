"""Masking sessions in the ledger: each message once, and a server that is killed anywhere."""

import hashlib
import time
from contextlib import suppress
from dataclasses import replace

import pytest
import sqlalchemy as sa

from fedloom.protocol.errors import Code, IntegrityError, Refusal
from fedloom.server.engine import RoundState, SessionState
from fedloom.server.ledger import Ledger
from fedloom.server.ledger.masking import sessions as stored
from fedloom.server.ledger.tables import masking_messages, masking_sessions
from support.marks import sampled
from support.masked_sessions import AGREE, BODY, CLOSED, REVEAL, SHARE, Device, Stage, config

PHASES = {
    SHARE: stored.SHARES,
    BODY: stored.BODY,
    AGREE: stored.AGREEMENT,
    REVEAL: stored.REVEAL,
    CLOSED: stored.CLOSING,
}
NAMES = tuple("abcdefgh")
RUN, ROUND = "digits", 3


def reporting(folder, names=NAMES):
    """A ledger whose round is reporting, with these members."""
    ledger = Ledger.in_directory(folder)
    row = {"id": RUN, "name": RUN, "spec": {"rounds": 3}, "state": "running", "model": "m"}
    ledger.add_run(row, 1)
    at = {"run": RUN, "number": ROUND, "kind": "train", "opened_at": 0.0, "deadline_at": 9e9}
    ledger.open_round({**at, "model_in": "m"}, names)
    return ledger


class LedgerBook:
    """What is durable, in a real ledger; see `Book`."""

    def __init__(self, folder, names):
        self.folder, self.deadline = folder, 0.0
        self.failed = set()
        self.ledger = reporting(folder, names)

    def reopen(self):
        """As a new server process does."""
        self.ledger.close()
        self.ledger = Ledger.in_directory(self.folder)

    @property
    def state(self):
        return RoundState(next(r.state for r in self.ledger.list_rounds(RUN) if r.number == ROUND))

    @state.setter
    def state(self, state):
        if state is RoundState.CLOSING:
            self.ledger.close_round(RUN, ROUND)
        elif state is RoundState.ABANDONED:
            self.ledger.abandon_round(RUN, ROUND, "too few", "quorum")

    @property
    def sessions(self):
        with self.ledger._engine.connect() as connection:
            query = sa.select(masking_sessions).order_by(masking_sessions.c.session)
            return [
                {
                    "state": SessionState(row["state"]),
                    "members": tuple(row["members"]),
                    "reason": row["reason"],
                    **{name: tuple(row[name] or ()) for name in ("shared", "masked", "revealed")},
                }
                for row in connection.execute(query).mappings()
            ]

    def of(self, number, kind):
        with self.ledger._engine.connect() as connection:
            query = sa.select(masking_messages.c.client)
            found = query.filter_by(session=number, phase=PHASES[kind])
            return set(connection.execute(found).scalars())

    def snapshot(self, number, now):
        found = self.ledger.sessions(RUN, ROUND)[number]
        return replace(found, left_s=self.deadline - now)  # the stage has a clock of its own

    def open(self, rosters, session_s):
        adverts = {name: f"ready {name}".encode() for _, members in rosters for name in members}
        until = time.time() + session_s
        self.ledger.open_sessions(RUN, ROUND, rosters, deadline_at=until, adverts=adverts)

    def store(self, number, state, **columns):
        at = (RUN, ROUND, number)
        if state is SessionState.FROZEN:
            self.ledger.freeze_session(at)
        elif state is SessionState.DONE:
            masked = self.ledger.sessions(RUN, ROUND)[number].masked
            self.ledger.finish_session(at, {client: f"file of {client}" for client in masked}, 8)
        else:
            self.ledger.move_session(at, state, **columns)

    def add(self, number, kind, client):
        content = f"{kind} {client}".encode()
        with suppress(Refusal):  # it comes too late
            self.ledger.store_session_message((RUN, ROUND, number), PHASES[kind], client, content)


def played(folder, stops, kill_at=None):
    devices = {name: Device(name, dict(stops).get(name, "")) for name in NAMES}
    book = LedgerBook(folder, NAMES)
    stage = Stage(devices, config(len(NAMES)), kill_at=kill_at, book=book)
    stage.ready()
    stage.run_out()
    return stage


SCRIPTS = [(), (("c", REVEAL), ("h", SHARE)), (("a", BODY), ("e", BODY), ("f", AGREE))]


@pytest.mark.long
@pytest.mark.parametrize("stops", sampled(SCRIPTS, 3, of_one=True))
def test_a_kill_at_any_crossing_gives_the_same_result(tmp_path, stops):
    """Each durable step is one transaction of the ledger, which is opened anew."""
    (tmp_path / "whole").mkdir()
    whole = played(tmp_path / "whole", stops)
    for kill_at in range(1, whole.crossings + 1):
        folder = tmp_path / str(kill_at)
        folder.mkdir()
        killed = played(folder, stops, kill_at)
        assert killed.kill_at is None, "the server was not killed"
        assert killed.result() == whole.result(), kill_at


@pytest.mark.parametrize("kill_at", [None, 3, 12, 41, 60])
def test_a_round_in_the_ledger_is_that_in_memory(tmp_path, kill_at):
    """The same engine, devices and kills, with a book in memory."""
    stops = SCRIPTS[1]
    devices = {name: Device(name, dict(stops).get(name, "")) for name in NAMES}
    memory = Stage(devices, config(len(NAMES)))
    memory.ready()
    memory.run_out()
    assert played(tmp_path, stops, kill_at).result() == memory.result()


# ---- messages --------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path):
    """Two sessions: abcd and efgh."""
    ledger = reporting(tmp_path)
    opened(ledger)
    return ledger


def opened(ledger, rosters=(("", "abcd"), ("", "efgh"))):
    adverts = {name: name.encode() for name in NAMES}
    ledger.open_sessions(RUN, ROUND, rosters, deadline_at=9e9, adverts=adverts)


AT = (RUN, ROUND, 0)


def test_a_repeat_is_acknowledged_and_another_message_is_refused(ledger):
    """For the same session, phase and client."""
    assert ledger.store_session_message(AT, stored.SHARES, "a", b"1")
    assert not ledger.store_session_message(AT, stored.SHARES, "a", b"1")
    with pytest.raises(Refusal) as refused:
        ledger.store_session_message(AT, stored.SHARES, "a", b"2")
    assert refused.value.code is Code.CONFLICTING_UPDATE
    assert ledger.session_messages(AT, stored.SHARES) == {"a": b"1"}


def test_a_repeat_is_acknowledged_in_a_later_state_too(ledger):
    ledger.store_session_message(AT, stored.SHARES, "a", b"1")
    ledger.move_session(AT, SessionState.MASKING, shared="abc")
    assert not ledger.store_session_message(AT, stored.SHARES, "a", b"1")


@pytest.mark.parametrize(
    ("phase", "client", "code"),
    [
        (stored.BODY, "a", Code.ROUND_CLOSED),  # before U2 is fixed
        (stored.AGREEMENT, "a", Code.ROUND_CLOSED),
        (stored.REVEAL, "a", Code.ROUND_CLOSED),
        (stored.CLOSING, "a", Code.ROUND_CLOSED),
        (stored.SHARES, "e", Code.NOT_IN_COHORT),  # of the other session
        (stored.SHARES, "x", Code.NOT_IN_COHORT),
    ],
)
def test_a_message_out_of_turn_is_refused(ledger, phase, client, code):
    with pytest.raises(Refusal) as refused:
        ledger.store_session_message(AT, phase, client, b"1")
    assert refused.value.code is code


def test_a_body_of_a_member_without_shares_is_refused(ledger):
    """Nobody could take its masks off."""
    ledger.move_session(AT, SessionState.MASKING, shared="abc")
    with pytest.raises(Refusal) as refused:
        ledger.store_session_message(AT, stored.BODY, "d", b"1")
    assert refused.value.code is Code.ROUND_CLOSED


def test_what_was_acknowledged_before_the_freeze_is_in_the_sum(ledger):
    """And nothing is, after it; another freeze finds the same."""
    ledger.move_session(AT, SessionState.MASKING, shared="abcd")
    for name in "dab":
        ledger.store_session_message(AT, stored.BODY, name, name.encode())
    assert ledger.freeze_session(AT) == list("abd")
    with pytest.raises(Refusal, match="Session 0 is frozen"):
        ledger.store_session_message(AT, stored.BODY, "c", b"c")
    assert ledger.freeze_session(AT) == list("abd")


def test_sessions_open_once(ledger):
    """A repeat changes nothing; other sessions for the round are an error."""
    ledger.move_session(AT, SessionState.MASKING, shared="abc")
    opened(ledger)
    assert ledger.sessions(RUN, ROUND)[0].shared == list("abc")
    with pytest.raises(IntegrityError):
        opened(ledger, (("", "abcdefgh"),))


def test_a_session_only_moves_forward(ledger):
    """A second U2 is an error, and so is an end of what is over."""
    ledger.move_session(AT, SessionState.MASKING, shared="abc")
    ledger.move_session(AT, SessionState.MASKING, shared="abc")
    with pytest.raises(IntegrityError, match="with other members"):
        ledger.move_session(AT, SessionState.MASKING, shared="abcd")
    with pytest.raises(IntegrityError, match="cannot be sharing now"):
        ledger.move_session(AT, SessionState.SHARING)
    ledger.move_session(AT, SessionState.ABANDONED, reason="enough")
    with pytest.raises(IntegrityError, match="is abandoned"):
        ledger.finish_session(AT, {}, 8)


def unmasking(ledger, masked="abc"):
    """Bring the first session to where only its sum is missing."""
    for client in "abcd":
        ledger.store_session_message(AT, stored.SHARES, client, b"secret")
    ledger.move_session(AT, SessionState.MASKING, shared="abcd")
    for client in masked:
        ledger.store_session_message(AT, stored.BODY, client, f"header of {client}".encode())
    ledger.freeze_session(AT)
    ledger.move_session(AT, SessionState.AGREEING)
    ledger.move_session(AT, SessionState.REVEALING)
    ledger.move_session(AT, SessionState.UNMASKING, revealed=masked)


def test_the_updates_of_survivors_count_when_the_sum_is_known(ledger):
    """Once, with the identity of the header that was sent; the others' do not."""
    unmasking(ledger)
    assert ledger.accepted(RUN, ROUND) == []
    with pytest.raises(IntegrityError, match="has no sum yet"):
        ledger.finish_session(AT, {"a": "file"}, 8)
    files = {client: f"file of {client}" for client in "abc"}
    assert set(ledger.finish_session(AT, files, 8)) == set("abc")
    assert set(ledger.finish_session(AT, files, 8)) == set()
    assert {row.client for row in ledger.accepted(RUN, ROUND)} == set("abc")
    found = ledger.find_update(RUN, ROUND, "a")
    assert found.identity == hashlib.sha256(b"header of a").hexdigest()
    assert ledger.body_digest(RUN, ROUND, "a") == found.identity
    assert ledger.body_digest(RUN, ROUND, "d") is None
    assert {m.client for m in ledger.cohort(RUN, ROUND) if m.phase == "reported"} == set("abc")


def test_members_of_an_abandoned_session_do_not_count_as_reported(ledger):
    """Their bodies were stored, and will never be in a sum."""
    unmasking(ledger)
    ledger.move_session(AT, SessionState.ABANDONED, reason="implausible sum")
    phases = {m.client: (m.phase, m.reason) for m in ledger.cohort(RUN, ROUND)}
    assert phases["a"] == ("lost", "implausible sum")
    assert phases["d"] == ("offered", "")
    assert ledger.accepted(RUN, ROUND) == []


def test_only_digests_stay_of_a_session_that_is_done(ledger):
    """No share and no advert."""
    unmasking(ledger)
    ledger.finish_session(AT, {client: f"file of {client}" for client in "abc"}, 8)
    for phase in (stored.READY, stored.SHARES, stored.BODY):
        assert ledger.session_messages(AT, phase) == {}
    assert set(ledger.session_messages((RUN, ROUND, 1), stored.READY)) == set("efgh")


def test_what_members_give_up_with_stays_until_the_round_is_over(ledger):
    """Adverts, to check signatures with, and those signatures; no share."""
    ledger.store_session_message(AT, stored.SHARES, "a", b"secret")
    ledger.move_session(AT, SessionState.ABANDONED)
    assert ledger.session_messages(AT, stored.SHARES) == {}
    assert set(ledger.session_messages(AT, stored.READY)) == set("abcd")
    ledger.store_session_message(AT, stored.CLOSING, "a", b"signature")
    assert ledger.sessions(RUN, ROUND)[0].closed == {"a"}
    assert ledger.session_messages(AT, stored.CLOSING) == {"a": b"signature"}
    ledger.forget_sessions(RUN, ROUND)
    for phase in (stored.READY, stored.CLOSING):
        assert ledger.session_messages(AT, phase) == {}


def test_a_masking_round_is_open(ledger):
    """It is found after a restart, and can be abandoned."""
    assert ledger.open_round_of(RUN).state == "masking"
    assert [row.number for row in ledger.open_rounds()] == [ROUND]
    ledger.abandon_round(RUN, ROUND, "enough", "stopped")
    assert ledger.open_rounds() == []
