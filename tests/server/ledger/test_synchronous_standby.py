"""A ledger whose commits wait for a synchronous standby: what is acknowledged is there, too."""

import re
import signal
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest
import sqlalchemy as sa

from fedloom.protocol.errors import UsageError
from fedloom.server.ledger import AcceptedUpdate, Ledger
from support.patience import PATIENCE_S
from support.postgresql import PostgreSQL
from support.site_servers import wait_until

pytestmark = pytest.mark.long

WATCHED_S = 1.0
"""How long a call is watched that must not return."""

RUN, CAPACITY = "run", 10
UPDATE = AcceptedUpdate(
    run=RUN, round=1, client="alice", identity="abc", file="run.1.alice", size_bytes=10, weight=1.0,
    norm=1.0,
)  # fmt: skip
ROUND = {
    "run": RUN, "number": 1, "kind": "train", "opened_at": 0.0, "deadline_at": 60.0,
    "model_in": "old",
}  # fmt: skip


class Pair:
    """A ledger with an open round on a primary that has a synchronous standby."""

    def __init__(self, primary, standby, name):
        self.primary, self.standby, self.name = primary, standby, name
        self.url = primary.create(name)
        self.ledger = Ledger(self.url)
        run = {"id": RUN, "name": RUN, "spec": {}, "state": "running", "model": "old"}
        self.ledger.add_run(run, 100)
        self.ledger.open_round(ROUND, ["alice", "bob"])
        self._threads = ThreadPoolExecutor()

    def begin(self, call, *arguments):
        """Call in a thread; returns once its commit waits for the standby, which does not run."""
        before = len(self.primary.waiting())
        future = self._threads.submit(call, *arguments)
        wait_until(lambda: len(self.primary.waiting()) > before or future.done(), "it commits")
        return future

    def end_waits(self, how):
        """Cancel the waits of commits, by a function of PostgreSQL."""
        for process in self.primary.waiting():
            self.primary.execute(f"SELECT {how}({process})")

    def close(self):
        self.standby.start()  # for commits that wait
        self._threads.shutdown()
        self.ledger.close()


@pytest.fixture(scope="module")
def servers():
    with ExitStack() as stack:
        primary = stack.enter_context(closing(PostgreSQL()))
        yield primary, stack.enter_context(closing(primary.standby()))


@pytest.fixture
def pair(servers, tmp_path):
    with closing(Pair(*servers, tmp_path.name)) as pair:
        yield pair


def returns(future):
    """Whether a call returns within a while in which it might."""
    return bool(wait([future], WATCHED_S).done)


def cancelled_accept(pair, how="pg_terminate_backend"):
    """Accept an update while the standby is away; its row, which is visible and not replicated."""
    pair.standby.stop()
    accepting = pair.begin(pair.ledger.accept, UPDATE, CAPACITY)
    assert not returns(accepting)
    assert pair.ledger.find_update(RUN, 1, "alice") is None
    pair.end_waits(how)
    with pytest.raises(sa.exc.OperationalError) as raised:
        accepting.result(PATIENCE_S)
    row = pair.ledger.find_update(RUN, 1, "alice")
    assert row.identity == UPDATE.identity
    return row, str(raised.value)


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_commit_whose_wait_was_cancelled_counts_as_not_answered(pair, how):
    """PostgreSQL says COMMIT after `pg_cancel_backend`, with a warning."""
    _, said = cancelled_accept(pair, how)
    expected = "Expected a commit without a warning, got: canceling (the )?wait"
    assert how == "pg_terminate_backend" or re.search(expected, said)


def test_whatever_is_answered_after_a_read_waits_for_the_standby(pair):
    """A repeat, another accept, a look after a lost answer, and the reply to a request."""
    ledger = pair.ledger
    ledger.keep_reply("request", {"id": RUN})
    row, _ = cancelled_accept(pair)
    both = [(UPDATE, CAPACITY), (replace(UPDATE, client="bob"), CAPACITY)]
    calls = [
        pair.begin(ledger.repeat_all, [row]),
        pair.begin(ledger.reply_to, "request"),
        pair.begin(ledger.repeat_body, RUN, 1, "alice"),
    ]
    waits = [each for each in calls if not returns(each)]
    assert waits == calls[:2], "there is no masked body: nothing is acknowledged"
    pair.standby.start()
    assert [each.result(PATIENCE_S) for each in calls] == [[True], {"id": RUN}, False]
    pair.standby.stop()
    for call, arguments in (
        (ledger.accept_all, [both]),
        (ledger.find_settled, [RUN, 1, "alice", 1]),
    ):
        calls.append(pair.begin(call, *arguments))
        assert not returns(calls[-1])
        pair.standby.start()
        calls[-1].result(PATIENCE_S)
        pair.standby.stop()
    assert calls[-2].result() == [False, True]


def test_no_timeout_of_a_session_ends_the_wait(pair):
    """PostgreSQL turns them off for a commit; if one ended it, that would be an error."""
    limits = "".join(f"-c {name}_timeout=300 " for name in ("statement", "lock"))
    limits += "-c idle_in_transaction_session_timeout=300"
    hasty = Ledger(f"{pair.url}?options={limits}")
    pair.standby.stop()
    accepting = pair.begin(hasty.accept, UPDATE, CAPACITY)
    assert not returns(accepting)
    pair.standby.start()
    assert accepting.result(PATIENCE_S) is True
    hasty.close()


def test_commits_that_do_not_wait_for_the_standbys_are_refused(pair):
    """`synchronous_commit = local` of the user, or of the database."""
    pair.primary.execute("ALTER ROLE postgres SET synchronous_commit = local")
    rows = pair.ledger.lease_rows()
    try:
        with pytest.raises(UsageError, match=r"synchronous standbys \(standby\), got local"):
            rows.check_durable()
    finally:
        pair.primary.execute("ALTER ROLE postgres RESET synchronous_commit")
        rows.close()


def test_a_repeat_is_acknowledged_once_the_standby_has_it(pair):
    """Last of these tests, as the primary is lost: what was acknowledged is in the standby."""
    row, _ = cancelled_accept(pair)
    repeating = pair.begin(pair.ledger.repeat_all, [row])
    assert not returns(repeating), "it would be acknowledged, and lost with the primary"
    pair.standby.start()
    assert [*repeating.result(PATIENCE_S)] == [True]
    pair.primary.stop(signal.SIGQUIT)
    pair.standby.promote()
    after = Ledger(pair.standby.url(pair.name))
    assert after.find_update(RUN, 1, "alice").repeats == 1
    after.close()
