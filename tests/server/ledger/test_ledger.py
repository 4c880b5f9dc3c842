"""The ledger: an update counts once, a token serves once, a round commits once."""

import sys
import time
import tracemalloc
from dataclasses import replace

import pytest

from fedloom.protocol.errors import Code, Refusal, UnavailableError, UsageError
from fedloom.server.client_failures import Failures
from fedloom.server.ledger import AcceptedUpdate, Ledger, require_run
from fedloom.server.ledger import refusals as refusals_module
from fedloom.server.ledger.rows import Refused
from fedloom.server.rounds.member_records import Record

UPDATE = AcceptedUpdate(
    run="run",
    round=1,
    client="alice",
    identity="abc",
    file="run.1.alice",
    size_bytes=10,
    weight=2.0,
    norm=1.0,
    training={"num_examples": 2, "values": {"loss": 0.5}},
)
RESULT = {
    "model_out": "new",
    "strategy_state": '{"step": 1}',
    "training": {"num_examples": 2},
    "evaluation": {},
    "counts": True,
}


@pytest.fixture
def ledger(tmp_path):
    """A ledger with a run whose first round is open to alice and bob."""
    ledger = Ledger.in_directory(tmp_path)
    run = {
        "id": "run",
        "name": "run",
        "spec": {"rounds": 2},
        "state": "running",
        "reason": "",
        "model": "old",
    }
    ledger.add_run(run, 100)
    open_round(ledger, 1)
    yield ledger
    ledger.close()


def open_round(ledger, number, kind="train"):
    row = {
        "run": "run",
        "number": number,
        "kind": kind,
        "opened_at": 0.0,
        "deadline_at": 60.0,
        "model_in": "old",
    }
    ledger.open_round(row, ["alice", "bob"])


def refused(call, *args):
    with pytest.raises(Refusal) as caught:
        call(*args)
    return caught.value.code


@pytest.mark.parametrize("outcomes", ["ffffs", "ffffS", "FFFs", "FFFS", "fFfSs", "fffffffFSSsf"])
def test_the_ledger_counts_failures_as_the_server_does(ledger, outcomes):
    """Failed ("f") or accepted ("s"); capitals in a round that only evaluates."""
    ledger.add_token("t", "hash", "alice", 1e12)
    ledger.enrol("t", "serial", 1e12)
    found = Failures()
    for number, outcome in enumerate(outcomes, 2):
        evaluating = outcome.isupper()
        open_round(ledger, number, "evaluate" if evaluating else "train")
        if outcome in "fF":
            found = found.plus_one(float(number), evaluating=evaluating)
            ledger.set_phase("run", number, "alice", "failed", "no data", failures=found)
        else:
            found = found.after_success(evaluating=evaluating)
            ledger.accept(replace(UPDATE, round=number), 10)
        assert ledger.failures().get("alice", Failures(0, found.last_at, found.evaluating)) == found


def test_updates_are_accepted_together_as_one_by_one(ledger):
    """A refusal writes nothing and spoils no other; equal updates count once."""
    bob = replace(UPDATE, client="bob", file="run.1.bob")
    other = replace(UPDATE, identity="other")
    closed = replace(UPDATE, round=7)
    late = replace(UPDATE, client="carol")
    results = ledger.accept_all(
        [(UPDATE, 2), (UPDATE, 2), (closed, 2), (other, 2), (bob, 2), (late, 2)]
    )
    assert results[:2] == [True, False]
    assert results[4] is True
    codes = [result.code for result in results if isinstance(result, Refusal)]
    assert codes == [Code.ROUND_CLOSED, Code.CONFLICTING_UPDATE, Code.ROUND_CLOSED]
    assert {row.client for row in ledger.accepted("run", 1)} == {"alice", "bob"}
    assert ledger.accept(bob, 2) is False
    assert refused(ledger.accept, late, 2) is Code.ROUND_CLOSED


# ---- buffers ------------------------------------------------------------------------------------


def test_an_update_counts_in_the_buffer_that_its_row_names(ledger):
    """Its key has the round of its task; everything else follows `counts_in`."""
    ledger.close_round("run", 1)
    ledger.commit_round("run", 1, RESULT, 100)
    open_round(ledger, 2)
    assert refused(ledger.accept, UPDATE, 10) is Code.ROUND_CLOSED
    late = replace(UPDATE, counts_in=2, staleness=1)
    assert ledger.accept(late, 10) is True
    assert ledger.accept(replace(late, counts_in=3), 10) is False  # a repeat, in a later buffer
    assert ledger.accepted("run", 1) == []
    (row,) = ledger.accepted("run", 2)
    assert (row.round, row.client, row.file, row.staleness) == (1, "alice", UPDATE.file, 1)
    found = ledger.find_update("run", 1, "alice")
    assert (found.counts_in, found.staleness) == (2, 1)
    assert [(r.accepted, r.staleness) for r in ledger.list_rounds("run")] == [(0, 0), (1, 1)]
    full = replace(UPDATE, client="bob", counts_in=2, staleness=1)
    assert refused(ledger.accept, full, 1) is Code.ROUND_CLOSED


@pytest.mark.long
def test_metrics_of_a_round_are_read_in_pages(ledger):
    """Together they would take two kilobytes a client; each is read once, of this round alone."""
    values = {f"metric {place}": float(place) for place in range(8)}
    clients = [f"client {place}" for place in range(1_000)]
    for client in clients:
        training = {"num_examples": 2, "values": values}
        ledger.accept(replace(UPDATE, client=client, training=training), 10_000)
    open_round(ledger, 2)
    ledger.accept(replace(UPDATE, round=2), 10)
    tracemalloc.start()
    found = [row.client for row in ledger.reported_metrics("run", 1) if row.training]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sorted(found) == sorted(clients)
    assert peak < 1_000_000
    (row,) = ledger.reported_metrics("run", 2)
    assert (row.client, row.training, row.evaluation) == ("alice", UPDATE.training, {})


def test_memory_follows_the_committed_buffer(ledger):
    """A client's round counts after the commit of the buffer that contains its update."""
    ledger.close_round("run", 1)
    ledger.commit_round("run", 1, RESULT, 100)
    open_round(ledger, 2)
    ledger.accept(replace(UPDATE, counts_in=2, staleness=1), 10)
    assert ledger.last_counted("run", "alice") == 0
    ledger.close_round("run", 2)
    ledger.commit_round("run", 2, RESULT, 100)
    assert ledger.last_counted("run", "alice") == 1


def test_members_at_work_are_those_that_have_not_ended(ledger):
    """Of several rounds, without those that reported, failed or declined."""
    ledger.accept(UPDATE, 10)
    ledger.close_round("run", 1)
    ledger.commit_round("run", 1, RESULT, 100)
    open_round(ledger, 2)
    ledger.set_phase("run", 2, "alice", "failed", "no data")
    assert [(m.round, m.client) for m in ledger.at_work("run", 1)] == [(1, "bob"), (2, "bob")]
    assert [(m.round, m.client) for m in ledger.at_work("run", 2)] == [(2, "bob")]


# ---- updates ------------------------------------------------------------------------------------


def test_update_is_accepted_once_and_a_repeat_is_known(ledger):
    """A repeat does not count, and changes nothing else."""
    assert ledger.accept(UPDATE, 10) is True
    before = ledger.find_update("run", 1, "alice")
    assert ledger.accept(UPDATE, 10) is False
    assert ledger.accept(replace(UPDATE, file="elsewhere"), 10) is False
    assert ledger.find_update("run", 1, "alice") == replace(before, repeats=2)
    assert len(ledger.accepted("run", 1)) == 1


def test_repeats_are_counted_in_the_row(ledger):
    """Of a known update, alone or in a group; a row that is gone is no repeat."""
    ledger.accept(UPDATE, 10)
    row = ledger.find_update("run", 1, "alice")
    assert [*ledger.repeat_all([row])] == [True]
    assert ledger.accept(UPDATE, 10) is False
    assert ledger.find_update("run", 1, "alice") == replace(row, repeats=2)
    gone = replace(row, client="bob")
    assert [*ledger.repeat_all([gone, row])] == [False, True]
    assert [*ledger.repeat_all([replace(row, identity="other")])] == [False]


def test_another_update_for_the_round_conflicts(ledger):
    """It is refused, and the first is kept."""
    ledger.accept(UPDATE, 10)
    assert refused(ledger.accept, replace(UPDATE, identity="other"), 10) is Code.CONFLICTING_UPDATE
    assert ledger.find_update("run", 1, "alice").identity == "abc"


def test_acceptance_marks_the_member_reported(ledger):
    """In the same transaction."""
    ledger.set_phase("run", 1, "alice", "failed", "lost its patience")
    ledger.accept(UPDATE, 10)
    phases = {m.client: (m.phase, m.reason) for m in ledger.cohort("run", 1)}
    assert phases == {"alice": ("reported", ""), "bob": ("offered", "")}


def test_a_record_of_a_late_member_does_not_undo_its_update(ledger):
    """It arrived at the last moment: its accepted row is kept."""
    ledger.accept(UPDATE, 10)
    late = {name: Record(phase="late", ended_at=2.0, bytes_up=5) for name in ("alice", "bob")}
    ledger.keep_records("run", {1: late}, over=True)
    rows = {m.client: (m.phase, m.bytes_up) for m in ledger.members("run", 1)}
    assert rows == {"alice": ("reported", 5), "bob": ("late", 5)}
    assert ledger.round("run", 1).summary["counted"] == 1


def test_nothing_is_accepted_past_the_capacity(ledger):
    """Repeats of accepted updates are still recognised."""
    assert ledger.accept(UPDATE, 1)
    assert refused(ledger.accept, replace(UPDATE, client="bob"), 1) is Code.ROUND_CLOSED
    assert ledger.accept(UPDATE, 1) is False


@pytest.mark.parametrize("end", ["close", "abandon", "commit", "none"])
def test_nothing_new_is_accepted_once_a_round_has_closed(ledger, end):
    """Repeats are still recognised, conflicts still refused."""
    ledger.accept(UPDATE, 10)
    number = 1
    if end == "close":
        assert [u.client for u in ledger.close_round("run", 1)] == ["alice"]
        assert [u.client for u in ledger.close_round("run", 1)] == ["alice"]
    elif end == "commit":
        ledger.close_round("run", 1)
        ledger.commit_round("run", 1, RESULT, 100)
    elif end == "abandon":
        ledger.abandon_round("run", 1, "why not", "quorum")
    else:
        number = 7  # a round that never existed
    late = replace(UPDATE, client="bob", round=number)
    assert refused(ledger.accept, late, 10) is Code.ROUND_CLOSED
    assert ledger.accept(UPDATE, 10) is False
    other = replace(UPDATE, identity="other")
    assert refused(ledger.accept, other, 10) is Code.CONFLICTING_UPDATE
    assert ledger.find_update("run", 1, "bob") is None


# ---- rounds -------------------------------------------------------------------------------------


def test_commit_moves_the_run_once(ledger):
    """The round's result becomes the run's model; a second commit changes nothing."""
    ledger.close_round("run", 1)
    ledger.commit_round("run", 1, RESULT, 123)
    run = ledger.run("run")
    assert (run.model, run.strategy_state, run.committed) == ("new", '{"step": 1}', 1)
    ledger.commit_round("run", 1, RESULT | {"model_out": "newer"}, 123)
    assert ledger.run("run") == run
    assert [(m.round, m.digest) for m in ledger.list_models("run")] == [(0, "old"), (1, "new")]
    assert ledger.open_round_of("run") is None
    assert ledger.knows_model("new")
    assert not ledger.knows_model("newer")


@pytest.mark.parametrize("state", ["reporting", "abandoned"])
def test_only_a_closing_round_commits(ledger, state):
    """Not an open or abandoned one."""
    if state == "abandoned":
        ledger.abandon_round("run", 1, "no quorum", "quorum")
    ledger.commit_round("run", 1, RESULT, 100)
    assert ledger.run("run").model == "old"
    assert ledger.list_rounds("run")[0].state == state


def test_committed_round_cannot_be_abandoned(ledger):
    ledger.close_round("run", 1)
    ledger.commit_round("run", 1, RESULT, 100)
    ledger.abandon_round("run", 1, "too late", "quorum")
    assert ledger.list_rounds("run")[0].state == "committed"
    assert ledger.run("run").abandoned_in_a_row == 0


def test_abandoned_rounds_in_a_row_are_counted_until_one_commits(ledger):
    """Two abandoned, then one committed: the count rises and returns to 0."""
    ledger.abandon_round("run", 1, "no quorum", "quorum")
    ledger.abandon_round("run", 1, "no quorum", "quorum")  # a repeat does not count again
    open_round(ledger, 2)
    ledger.abandon_round("run", 2, "no quorum", "quorum")
    assert ledger.run("run").abandoned_in_a_row == 2
    open_round(ledger, 3)
    ledger.close_round("run", 3)
    ledger.commit_round("run", 3, RESULT, 100)
    assert ledger.run("run").abandoned_in_a_row == 0
    assert ledger.run("run").last_round == 3


def test_round_of_evaluation_makes_no_model(ledger):
    """It commits without counting as a wanted round."""
    open_round(ledger, 2, "evaluate")
    ledger.close_round("run", 2)
    ledger.commit_round("run", 2, RESULT | {"counts": False, "model_out": "old"}, 100)
    assert ledger.run("run").committed == 0
    assert [m.round for m in ledger.list_models("run")] == [0]


def test_open_rounds_are_those_that_report_or_close(ledger):
    """A restart continues these."""
    open_round(ledger, 2)
    open_round(ledger, 3)
    ledger.close_round("run", 2)
    ledger.abandon_round("run", 3, "no quorum", "quorum")
    assert [(r.number, r.state) for r in ledger.open_rounds()] == [(1, "reporting"), (2, "closing")]


def test_a_restart_keeps_everything(ledger, tmp_path):
    ledger.accept(UPDATE, 10)
    ledger.close_round("run", 1)
    again = Ledger.in_directory(tmp_path)
    assert again.run("run") == ledger.run("run")
    assert again.accepted("run", 1) == ledger.accepted("run", 1)
    assert again.accept(UPDATE, 10) is False
    again.close()


def test_unknown_run_is_a_usage_error(ledger):
    """The message names the command that lists runs."""
    with pytest.raises(UsageError, match="fedloom run list"):
        require_run(ledger.run("nope"), "nope")


# ---- identities ---------------------------------------------------------------------------------


def test_token_serves_once(ledger):
    """The second use is refused and leaves no certificate."""
    ledger.add_token("t", "hash", "carol", 100.0)
    ledger.enrol("t", "serial-1", 500.0)
    assert refused(ledger.enrol, "t", "serial-2", 500.0) is Code.BAD_TOKEN
    ledger.check_certificate("serial-1", "carol")
    assert refused(ledger.check_certificate, "serial-2", "carol") is Code.UNKNOWN_CLIENT
    assert refused(ledger.enrol, "never was", "serial-3", 500.0) is Code.BAD_TOKEN


def test_failed_enrolment_leaves_the_token_unused(ledger):
    """A duplicate serial rolls back the whole transaction."""
    ledger.add_token("t1", "hash", "carol", 100.0)
    ledger.add_token("t2", "hash", "dave", 100.0)
    ledger.enrol("t1", "serial", 500.0)
    with pytest.raises(Exception, match="UNIQUE"):
        ledger.enrol("t2", "serial", 500.0)
    assert ledger.token("t2").used_at is None
    assert ledger.client_status("dave") is None


def test_certificate_is_valid_only_for_its_client(ledger):
    ledger.add_token("t", "hash", "carol", 100.0)
    ledger.enrol("t", "serial", 500.0)
    assert refused(ledger.check_certificate, "serial", "dave") is Code.UNKNOWN_CLIENT


def test_revocation_covers_every_certificate_and_ends_with_a_new_enrolment(ledger):
    """Old certificates stay revoked."""
    ledger.add_token("t", "hash", "carol", 100.0)
    ledger.enrol("t", "first", 500.0)
    ledger.add_certificate("renewed", "carol", 600.0)
    assert ledger.revoke("carol")
    assert ledger.revoked_clients() == {"carol"}
    for serial in ("first", "renewed"):
        assert refused(ledger.check_certificate, serial, "carol") is Code.REVOKED
    ledger.add_token("again", "hash", "carol", 100.0)
    ledger.enrol("again", "second", 700.0)
    assert ledger.revoked_clients() == set()
    ledger.check_certificate("second", "carol")
    assert refused(ledger.check_certificate, "first", "carol") is Code.REVOKED
    assert not ledger.revoke("nobody")


def test_what_is_known_of_a_certificate_ends_with_a_revocation(ledger, tmp_path):
    """By this process at once, and by another one when the revoked clients are read."""
    ledger.add_token("t", "hash", "carol", 100.0)
    ledger.enrol("t", "first", 500.0)
    assert not ledger.is_checked("first", "carol")
    ledger.check_certificate("first", "carol")
    assert ledger.is_checked("first", "carol")
    assert not ledger.is_checked("second", "carol")
    assert not ledger.is_checked("first", "dave")
    ledger.revoke("carol")
    assert not ledger.is_checked("first", "carol")
    assert refused(ledger.check_certificate, "first", "carol") is Code.REVOKED
    assert not ledger.is_checked("first", "carol")
    for token, serial, shut_out in (("u", "second", Ledger.revoke), ("v", "third", Ledger.leave)):
        ledger.add_token(token, "hash", "carol", 100.0)
        ledger.enrol(token, serial, 500.0)
        ledger.check_certificate(serial, "carol")
        other = Ledger.in_directory(tmp_path)
        shut_out(other, "carol")
        other.close()
        assert ledger.revoked_clients() == {"carol"}
        assert not ledger.is_checked(serial, "carol")


def test_a_client_that_enrols_again_loses_what_is_known_of_its_certificate(ledger, tmp_path):
    """Another process has revoked it, and the server has not read that yet."""
    ledger.add_token("t", "hash", "carol", 100.0)
    ledger.enrol("t", "first", 500.0)
    ledger.check_certificate("first", "carol")
    other = Ledger.in_directory(tmp_path)
    other.revoke("carol")
    other.close()
    ledger.add_token("again", "hash", "carol", 4e9)
    ledger.enrol("again", "second", 500.0)
    assert not ledger.is_checked("first", "carol")
    assert refused(ledger.check_certificate, "first", "carol") is Code.REVOKED


def test_revocation_voids_unused_tokens(ledger):
    """Earlier tokens cannot undo it; times of ended tokens do not change."""
    ledger.add_token("out", "hash", "carol", 4e9)
    ledger.add_token("ended", "hash", "carol", 5.0)
    ledger.add_token("dave's", "hash", "dave", 4e9)
    ledger.add_token("t", "hash", "carol", 4e9)
    ledger.enrol("t", "serial", 500.0)
    ledger.revoke("carol")
    ends = {t.id: t.expires_at for t in ledger.list_tokens()}
    assert ends["out"] <= time.time()
    assert (ends["ended"], ends["dave's"], ends["t"]) == (5.0, 4e9, 4e9)


def test_certificate_issued_while_its_client_is_revoked_is_void(ledger):
    """Also for a renewal that began before the revocation."""
    ledger.add_token("t", "hash", "carol", 100.0)
    ledger.enrol("t", "first", 500.0)
    ledger.revoke("carol")
    assert refused(ledger.add_certificate, "renewed", "carol", 600.0) is Code.REVOKED
    assert refused(ledger.check_certificate, "renewed", "carol") is Code.UNKNOWN_CLIENT


def test_a_client_that_has_left_is_refused_with_that_reason(ledger):
    """Also a renewal that began before; a new token admits it again."""
    ledger.add_token("t", "hash", "carol", 4e9)
    ledger.add_token("again", "hash", "carol", 4e9)
    ledger.enrol("t", "first", 500.0)
    assert ledger.leave("carol")
    assert not ledger.leave("nobody")
    assert ledger.client_status("carol") == "left"
    assert ledger.revoked_clients() == {"carol"}
    assert refused(ledger.add_certificate, "renewed", "carol", 600.0) is Code.REVOKED
    assert refused(ledger.check_certificate, "first", "carol") is Code.REVOKED
    assert {row.id: row.expires_at for row in ledger.list_tokens()}["again"] < 4e9
    ledger.add_token("new", "hash", "carol", 4e9)
    ledger.enrol("new", "second", 500.0)
    ledger.check_certificate("second", "carol")
    assert ledger.client_status("carol") == "active"


def test_lists_never_show_a_token_s_hash(ledger):
    ledger.add_token("t", "hash of the secret", "carol", 100.0)
    assert "hash of the secret" not in str(ledger.list_tokens())


# ---- refusals -----------------------------------------------------------------------------------


def test_newest_refusals_are_kept_and_listed_first(ledger, monkeypatch):
    """The oldest are deleted; a run sees its own."""
    monkeypatch.setattr(refusals_module, "KEPT_REFUSALS", 4)
    row = Refused(at=1.0, client="mallory", run="", round=0, code="too_large", message="")
    for number in range(6):
        run, message = "run" if number % 2 else "", f"message {number}"
        new = replace(row, run=run, round=number, message=message, detail="detail")
        ledger.put_refusals([(None, new)])
    assert [r.round for r in ledger.list_refusals()] == [5, 4, 3, 2]
    assert [r.round for r in ledger.list_refusals("run")] == [5, 3]
    newest = ledger.list_refusals(limit=1)[0]
    assert (newest.client, newest.code, newest.message, newest.detail) == (
        "mallory",
        "too_large",
        "message 5",
        "detail",
    )


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("hidden", UsageError, "SQLAlchemy URL"),
        ("nosuch://hidden@localhost/x", UsageError, "SQLAlchemy URL"),
        ("sqlite:////nonexistent/hidden/x.sqlite", UnavailableError, "unable to open"),
    ],
)
def test_a_database_that_cannot_be_opened_is_an_error(url, error, message):
    """Without the URL, which may hold a password."""
    with pytest.raises(error, match=message) as raised:
        Ledger(url)
    assert "hidden" not in str(raised.value)


def test_a_missing_database_driver_is_named(monkeypatch):
    """SQLAlchemy names a dialect; the message names its driver."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UsageError, match="pip install psycopg"):
        Ledger("postgresql+psycopg://ward@localhost/fedloom")
