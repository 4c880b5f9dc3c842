"""What gates and the driver write, on a real PostgreSQL: each ledger is a server of its own."""

import hashlib
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from fedloom.protocol.errors import Code, Refusal
from fedloom.server.ledger import AcceptedUpdate, Ledger
from fedloom.server.ledger.objects.stored_bodies import BodyObject, StoredPart
from fedloom.server.ledger.replicas.batch_accepts import GateUpload
from fedloom.server.ledger.replicas.gate_queues import (
    GATE_S,
    LATE_S,
    AcceptedHere,
    GateLease,
    Mail,
    Mailed,
    SeenHere,
    Telling,
    Told,
)
from fedloom.server.ledger.replicas.lease_rows import LeaseLostError
from fedloom.server.ledger.tables import clients, inbox, mail, updates
from support.contexts import rows_of
from support.patience import PATIENCE_S

pytestmark = pytest.mark.long

ROUND = {
    "run": "r", "number": 1, "kind": "train", "opened_at": 1.0, "deadline_at": 9.0,
    "model_in": "m",
}  # fmt: skip
MEMBERS = ["ward.one", "ward.two", "ward.three"]
HEADER = b"header"
SAME = {"run": "r", "round": 1, "size_bytes": 9, "weight": 1.0, "norm": 1.0}
METRICS = {"training": {}, "evaluation": {}}


@pytest.fixture
def opened(database, request):
    """Opens a ledger with a run in round 1, as another server each time."""
    name, found = request.node.name.replace("[", "-").replace("]", "")[:60], []
    url = database.create(name)

    def open_ledger():
        found.append(Ledger(url))
        return found[-1]

    first = open_ledger()
    for client in MEMBERS:
        first._change(clients.insert().values(name=client, status="active", enrolled_at=1.0))
    first.add_run({"id": "r", "name": "r", "spec": {}, "state": "running", "model": "m"}, 9)
    first.open_round(ROUND, MEMBERS)
    open_ledger.url = url
    yield open_ledger
    for each in found:
        each.close()


def join(ledger, gate):
    rows = ledger.lease_rows()
    rows.join(gate, "machine")
    ledger.fence(GateLease(gate).check)
    return rows


def body(ledger, client, header=HEADER, parts=1, name=None):
    """The file of a body with so many durable parts."""
    file = f"r.1.{client}"
    found = BodyObject(object=name or f"updates/{client}", header=header, size_bytes=9)
    ledger.begin_body(file, "r", 1, found)
    stored = [StoredPart(7, str(number)) for number in range(parts)]
    for count in range(1, parts + 1):
        assert ledger.note_parts(found.object, stored[:count])
    return file


def update(client, file, header=HEADER):
    identity = hashlib.sha256(header).hexdigest()
    return AcceptedUpdate(client=client, identity=identity, file=file, **SAME, **METRICS)


def accept(ledger, gate, update_, capacity=9, parts=1):
    upload = GateUpload(update=update_, capacity=capacity, parts=parts)
    [result] = ledger.accept_at_gate(gate, 0, [upload])
    if isinstance(result, Exception):
        raise result
    return result is not None


def refused(ledger, gate, *arguments, **options):
    with pytest.raises(Refusal) as raised:
        accept(ledger, gate, *arguments, **options)
    assert not rows_of(ledger, updates.select()), "nothing was written"
    assert not ledger.take_inbox()
    return raised.value.code


def test_an_accept_tells_the_driver_in_its_transaction(opened):
    """A repeat is answered, and tells nothing."""
    ledger = opened()
    rows = join(ledger, "g1")
    mine = update("ward.one", body(ledger, "ward.one"))
    assert accept(ledger, "g1", mine)
    assert not accept(ledger, "g1", mine)
    [told] = ledger.take_inbox()
    assert (told.gate, told.telling.kind) == ("g1", Told.ACCEPTED)
    here = AcceptedHere.parse(told.telling.content)
    assert (here.client, here.run, here.round, here.counted) == ("ward.one", "r", 1, 1)
    assert here.file == mine.file
    with pytest.raises(Refusal, match="another one"):
        accept(ledger, "g1", update("ward.one", mine.file, b"other"))
    rows.close()


@pytest.mark.parametrize("names", [MEMBERS[:1], MEMBERS], ids=["one", "together"])
def test_what_a_gate_saw_of_a_member_is_told_before_its_update(opened, names):
    """In the accept's transaction: the last update of a round closes it, with all its records."""
    ledger = opened()
    rows = join(ledger, "g1")
    seen = {name: {"bytes_down": 7 + place} for place, name in enumerate(names)}
    uploads = [
        GateUpload(update=update(name, body(ledger, name)), capacity=9, parts=1, seen=seen[name])
        for name in names
    ]
    ledger.accept_at_gate("g1", 0, uploads)
    told = [each.telling for each in ledger.take_inbox()]
    assert [(each.kind, each.client) for each in told] == [
        (kind, name) for name in names for kind in (Told.SEEN, Told.ACCEPTED)
    ]
    records = [SeenHere.parse(each.content) for each in told[::2]]
    assert records == [SeenHere("r", 1, seen[name]) for name in names]
    rows.close()


def test_what_a_gate_must_not_accept(opened):
    """By the ledger's rows alone, at the moment of the accept."""
    ledger = opened()
    rows = join(ledger, "g1")
    stranger = update("ward.nine", body(ledger, "ward.nine"))
    assert refused(ledger, "g1", stranger) is Code.NOT_IN_COHORT
    mine = update("ward.one", body(ledger, "ward.one"))
    assert refused(ledger, "g1", mine, capacity=0) is Code.ROUND_CLOSED
    assert refused(ledger, "g1", mine, parts=2) is Code.BUSY
    changed = update("ward.one", mine.file, b"another body")
    assert refused(ledger, "g1", changed) is Code.BUSY
    ledger.set_hold("ward.one", "quarantine", "")
    assert refused(ledger, "g1", mine) is Code.QUARANTINED
    ledger.set_hold("ward.one", "drain", "")
    assert accept(ledger, "g1", mine)
    ledger.revoke("ward.two")
    gone = update("ward.two", body(ledger, "ward.two"))
    with pytest.raises(Refusal) as raised:
        accept(ledger, "g1", gone)
    assert raised.value.code is Code.REVOKED
    ledger.close_round("r", 1)
    late = update("ward.three", body(ledger, "ward.three"))
    with pytest.raises(Refusal) as raised:
        accept(ledger, "g1", late)
    assert raised.value.code is Code.ROUND_CLOSED
    assert [row["client"] for row in rows_of(ledger, updates.select())] == ["ward.one"]
    rows.close()


def commit(ledger, number):
    ledger.close_round("r", number)
    result = {"model_out": f"m{number}", "strategy_state": None, "training": {}, "evaluation": {}}
    ledger.commit_round("r", number, {**result, "counts": True}, 1)


def buffered(ledger, client, number, capacity=9, max_staleness=2):
    """Accept an update for the task of a round in the open buffer: what counts, or the refusal."""
    update_ = replace(update(client, ""), round=number)
    upload = GateUpload(update=update_, capacity=capacity, parts=0, max_staleness=max_staleness)
    [result] = ledger.accept_at_gate("g1", 0, [upload])
    return result.code if isinstance(result, Refusal) else result


def test_an_accept_decides_in_which_buffer_an_update_counts(opened):
    """In the open one, by its rows; a repeat is answered whatever is open."""
    ledger = opened()
    rows = join(ledger, "g1")
    one, two, three = MEMBERS
    assert buffered(ledger, one, 1).staleness == 0
    commit(ledger, 1)
    assert buffered(ledger, two, 1) is Code.ROUND_CLOSED, "it waits for the next"
    assert buffered(ledger, one, 1) is None, "a repeat"
    ledger.open_round(ROUND | {"number": 2}, [one])
    assert buffered(ledger, two, 1, capacity=0) is Code.BUSY, "it is full"
    found = buffered(ledger, two, 1)
    assert (found.round, found.counted, found.staleness) == (1, 2, 1)
    told = [AcceptedHere.parse(each.telling.content) for each in ledger.take_inbox()]
    assert [(each.client, each.counted, each.staleness) for each in told] == [
        (one, 1, 0), (two, 2, 1),
    ]  # fmt: skip
    stored = {each.client: (each.round, each.staleness) for each in ledger.accepted("r", 2)}
    assert stored == {two: (1, 1)}
    commit(ledger, 2)
    ledger.open_round(ROUND | {"number": 3}, [])
    assert buffered(ledger, three, 1, max_staleness=1) is Code.STALE_ROUND
    assert buffered(ledger, three, 1).staleness == 2
    rows.close()


def test_what_a_gate_must_not_accept_in_a_buffer(opened):
    """Of who does not work on that task, or of work that has ended."""
    ledger = opened()
    rows = join(ledger, "g1")
    one, two, three = MEMBERS
    assert buffered(ledger, "ward.nine", 1) is Code.NOT_IN_COHORT
    ledger.set_phase("r", 1, one, "declined")
    assert buffered(ledger, one, 1) is Code.NOT_IN_COHORT
    commit(ledger, 1)
    ledger.open_round(ROUND | {"number": 2}, [two])
    assert buffered(ledger, two, 1) is Code.NOT_IN_COHORT, "it has a later task"
    assert buffered(ledger, three, 1).counted == 2
    ledger.recruit("r", 2, three)
    assert buffered(ledger, three, 2) is Code.BUSY, "it counts in this buffer already"
    ledger.abandon_round("r", 2, "", "stopped")
    ledger.open_round(ROUND | {"number": 3}, [])
    assert buffered(ledger, two, 2) is Code.STALE_ROUND, "an abandoned buffer ends all work"
    assert [row["client"] for row in rows_of(ledger, updates.select())] == [three]
    rows.close()


def test_an_undone_round_ends_the_work_on_its_task(opened):
    """The model on which the client trained is no longer one of the run."""
    ledger = opened()
    rows = join(ledger, "g1")
    commit(ledger, 1)
    ledger.open_round(ROUND | {"number": 2}, MEMBERS[:1])
    commit(ledger, 2)
    ledger.roll_back("r", 1)
    ledger.open_round(ROUND | {"number": 3}, [])
    assert buffered(ledger, MEMBERS[0], 2) is Code.STALE_ROUND
    assert buffered(ledger, MEMBERS[1], 1) is Code.STALE_ROUND
    assert ledger.models_before("r", 3, 9) == {1: "m"}
    rows.close()


def test_a_second_upload_cannot_harm_an_accepted_body(opened):
    """It neither replaces the body's row, nor its parts, nor deletes it."""
    ledger, other = opened(), opened()
    rows = join(ledger, "g1")
    mine = update("ward.one", body(ledger, "ward.one", parts=2))
    assert not other.note_parts("updates/ward.one", [StoredPart(7, "0"), StoredPart(8, "1b")])
    assert accept(ledger, "g1", mine, parts=2)
    with pytest.raises(Refusal, match="accepted meanwhile"):
        body(other, "ward.one", name="updates/again")
    assert not other.give_up_body("updates/ward.one")
    kept = other.body_object(mine.file)
    assert (kept.object, len(kept.parts)) == ("updates/ward.one", 2)
    rows.close()


def test_an_accept_and_a_second_upload_wait_for_each_other(opened):
    """Whichever is first: an accepted update has a whole body."""
    for turn in range(6):
        client = MEMBERS[turn % 3]
        ledger, other = opened(), opened()
        rows = join(ledger, f"g{turn}")
        mine = update(client, body(ledger, client))
        barrier, results = threading.Barrier(2), {}

        def work(name, call, barrier=barrier, results=results):
            barrier.wait()
            with suppress(Refusal):
                results[name] = call()

        calls = {
            "accept": lambda ledger=ledger, mine=mine, turn=turn: accept(ledger, f"g{turn}", mine),
            "begin": lambda other=other, client=client: body(other, client, parts=0, name="again"),
        }
        threads = [threading.Thread(target=work, args=each) for each in calls.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        found = ledger.body_object(mine.file)
        accepted = ledger.find_update("r", 1, client) is not None
        assert accepted == ("accept" in results) == ("begin" not in results)
        assert (found.object, len(found.parts)) == (
            (f"updates/{client}", 1) if accepted else ("again", 0)
        )
        ledger._change(updates.delete())
        ledger._change(sa.text("DELETE FROM spool_objects"))
        rows.close()


def test_of_two_bodies_of_one_file_that_begin_at_once_one_is_left(opened):
    """The driver would read the row of either, and the accept may have looked at the other one."""
    ledger, other = opened(), opened()
    held, go = threading.Event(), threading.Event()

    def hold(_connection):
        held.set()
        go.wait(PATIENCE_S)

    sa.event.listen(ledger._engine, "commit", hold)
    begin = {"name": "updates/first", "parts": 0}
    first = threading.Thread(target=body, args=(ledger, "ward.one"), kwargs=begin)
    first.start()
    assert held.wait(PATIENCE_S)
    begin = {"name": "updates/second", "header": b"other", "parts": 0}
    second = threading.Thread(target=body, args=(other, "ward.one"), kwargs=begin)
    second.start()
    time.sleep(0.3)
    go.set()
    for each in (first, second):
        each.join(PATIENCE_S)
    assert [each.object for each in ledger.bodies_of_file("r.1.ward.one")] == ["updates/second"]


def test_nobody_waits_for_sums_of_a_gate_that_is_late(opened):
    """Nor of one that has left: the driver folds the bodies."""
    ledger, driver = opened(), opened()
    rows = join(ledger, "g1")
    assert accept(ledger, "g1", update("ward.one", body(ledger, "ward.one")))
    assert driver.unsealed("r", 1) == {"g1"}
    driver._change(sa.text(f"UPDATE gates SET renewed_at = renewed_at - {LATE_S}"))
    assert driver.unsealed("r", 1) == set()
    assert rows.stay("g1") == (True, None)
    assert driver.unsealed("r", 1) == {"g1"}
    rows.leave("g1")
    assert driver.unsealed("r", 1) == set()
    rows.close()


@pytest.mark.parametrize("age_s", [GATE_S + 1, -GATE_S - 1], ids=["late", "of the future"])
def test_a_gate_that_was_struck_out_writes_nothing(opened, database, age_s):
    """The driver deletes its row once it is late; its mail goes with it."""
    ledger, driver = opened(), opened()
    rows = join(ledger, "g1")
    driver.post([Mail("g1", "s", Mailed.SEND, b"hello"), Mail("g2", "s", Mailed.SEND, b"")])
    assert driver.strike_out() == {"g1": "machine"}
    assert [row["gate"] for row in rows_of(driver, mail.select())] == ["g1"]
    assert rows.stay("g1") == (True, None)
    driver._change(sa.text(f"UPDATE gates SET renewed_at = renewed_at - {age_s}"))
    assert driver.strike_out() == {}
    assert rows.stay("g1") == (False, None)
    assert not rows_of(driver, mail.select())
    for change in (
        lambda: ledger.tell("g1", 1, [Telling(Told.LEFT, "s", "ward.one")]),
        lambda: body(ledger, "ward.one"),
        lambda: ledger.take_mail("g1"),
    ):
        with pytest.raises(LeaseLostError, match="struck out"):
            change()
    assert not rows_of(driver, inbox.select())
    rows.close()


def test_striking_out_waits_for_an_accept(opened):
    """That has passed the check: it counts, and the driver reads of it."""
    ledger, driver = opened(), opened()
    rows = join(ledger, "g1")
    mine = update("ward.one", body(ledger, "ward.one"))
    held, go = threading.Event(), threading.Event()

    def hold(_connection):
        held.set()
        go.wait(PATIENCE_S)

    sa.event.listen(ledger._engine, "commit", hold)
    accepting = threading.Thread(target=accept, args=(ledger, "g1", mine))
    accepting.start()
    assert held.wait(PATIENCE_S)
    driver._change(sa.text(f"UPDATE gates SET renewed_at = renewed_at - {GATE_S + 1}"))
    striking = threading.Thread(target=driver.strike_out)
    striking.start()
    time.sleep(0.3)
    assert striking.is_alive(), "it waits for the accept"
    go.set()
    accepting.join(PATIENCE_S)
    striking.join(PATIENCE_S)
    assert driver.find_update("r", 1, "ward.one") is not None
    assert [each.telling.kind for each in driver.take_inbox()] == [Told.ACCEPTED]
    rows.close()


def test_messages_come_once_and_in_order(opened):
    """Those of one writer; also more than are read at once."""
    ledger, driver = opened(), opened()
    rows = join(ledger, "g1")
    said = [Telling(Told.SAID, "s", "ward.one", str(n).encode()) for n in range(2500)]
    for start in range(0, len(said), 700):
        ledger.tell("g1", 3, said[start : start + 700])
    read = []
    while found := driver.take_inbox():
        read += found
    assert [each.telling for each in read] == said
    assert {(each.gate, each.epoch) for each in read} == {("g1", 3)}
    letters = [Mail("g1", "s", Mailed.SEND, str(n).encode()) for n in range(2500)]
    driver.post(letters)
    got = []
    while found := ledger.take_mail("g1"):
        got += found
    assert got == letters
    rows.close()


def test_a_read_whose_answer_is_lost_loses_no_message(opened, monkeypatch):
    """As when the database fails over: the transaction may be committed all the same."""
    ledger, driver = opened(), opened()
    rows = join(ledger, "g1")
    said = Telling(Told.SAID, "s", "ward.one", b"hello")
    ledger.tell("g1", 3, [said])
    real = driver._write

    @contextmanager
    def unanswered():
        with real() as connection:
            yield connection
        raise OperationalError("COMMIT", {}, Exception("the connection is lost"))

    with monkeypatch.context() as patch:
        patch.setattr(driver, "_write", unanswered)
        with pytest.raises(OperationalError):
            driver.take_inbox()
    assert [each.telling for each in driver.take_inbox()] == [said]
    assert not driver.take_inbox()
    rows.close()
