"""Ledgers with a masked round, filled by the ledger's own methods as a server fills them."""

from fedloom.server.engine import SessionState
from fedloom.server.ledger import Ledger
from fedloom.server.ledger.masking import sessions as phases

RUN, NUMBER = "digits-1", 2
AT = (RUN, NUMBER, 0)
NAMES = "abcdefgh"
ROSTERS = (("", "abcd"), ("", "efgh"))

MASKED = {
    "name": "digits", "rounds": 3, "max_abs": 1.0, "weighting": "uniform",
    "cohort": {"goal": 8, "quorum": 7}, "train": {"epochs": 1, "learning_rate": 0.1},
    "masking": {"group": 4, "min_group": 3},
}  # fmt: skip


def masked_ledger(folder, rosters=ROSTERS, names=NAMES, *, run=RUN, spec=None):
    """A ledger with a plain round 1, and a round 2 whose sessions are open."""
    ledger = Ledger.in_directory(folder)
    row = {"id": run, "name": run.rpartition("-")[0], "spec": spec or {"rounds": 3}}
    ledger.add_run({**row, "state": "running", "model": "m"}, 1)
    for number, members in ((1, names[:2]), (NUMBER, names)):
        at = {"run": run, "number": number, "kind": "train", "opened_at": 0.0, "deadline_at": 9e9}
        ledger.open_round({**at, "model_in": "m"}, members)
    adverts = {name: f"secret ready {name}".encode() for name in names}
    ledger.open_sessions(run, NUMBER, rosters, deadline_at=9e9, adverts=adverts)
    return ledger


def send(ledger, phase, clients, *, session=0, run=RUN):
    """Store a message of this phase of each of these members."""
    for client in clients:
        content = f"secret {phase} {client}".encode()
        ledger.store_session_message((run, NUMBER, session), phase, client, content)


def frozen(ledger, session, survivors, *, run=RUN):
    """Take a session of which these members survive to its signatures."""
    at = (run, NUMBER, session)
    members = ledger.session_rows(run, NUMBER)[session].members
    send(ledger, phases.SHARES, members, session=session, run=run)
    ledger.move_session(at, SessionState.MASKING, shared=members)
    send(ledger, phases.BODY, survivors, session=session, run=run)
    ledger.freeze_session(at)
    ledger.move_session(at, SessionState.AGREEING)


def done(ledger, session, survivors, *, revealed=None, run=RUN):
    """Take a session to its sum; these reveal, or else all survivors."""
    at = (run, NUMBER, session)
    revealed = survivors if revealed is None else revealed
    frozen(ledger, session, survivors, run=run)
    send(ledger, phases.AGREEMENT, survivors, session=session, run=run)
    ledger.move_session(at, SessionState.REVEALING)
    send(ledger, phases.REVEAL, revealed, session=session, run=run)
    ledger.move_session(at, SessionState.UNMASKING, revealed=revealed)
    ledger.move_session(at, SessionState.DONE)


def abandoned(ledger, session, *, agreed="", closing="", reason="threshold not reached", run=RUN):
    """Take a session to its signatures, and abandon it there."""
    at = (run, NUMBER, session)
    frozen(ledger, session, ledger.session_rows(run, NUMBER)[session].members, run=run)
    send(ledger, phases.AGREEMENT, agreed, session=session, run=run)
    ledger.move_session(at, SessionState.ABANDONED, reason=reason)
    send(ledger, phases.CLOSING, closing, session=session, run=run)
