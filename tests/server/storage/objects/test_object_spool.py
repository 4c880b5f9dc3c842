"""Bodies in an object store: in parts while they arrive, resumed and folded by another machine."""

import secrets
from dataclasses import replace

import pytest

from fedloom.protocol.errors import IntegrityError, Refusal
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import SessionState
from fedloom.server.ledger.masking import sessions as phases
from fedloom.server.ledger.objects.stored_bodies import BodyObject, StoredPart
from fedloom.server.storage.objects.interface import (
    DamagedObjectError,
    MissingObjectError,
    StoreFaultError,
)
from fedloom.server.storage.objects.object_spool import ObjectSpool
from fedloom.server.storage.objects.upkeep import sweep
from fedloom.server.storage.spool import Spool
from support.masked_rounds import AT, masked_ledger, send

RUN = "run-abc"
SIZE = 3456
BODY = secrets.token_bytes(SIZE)
"""Three parts of 1,000 bytes, and a short one."""


def header(client="alice", **fields):
    return fleet_pb2.UpdateHeader(client=client, size_bytes=len(BODY), **fields)


def opened(machine, client="alice", number=1, **fields):
    file = machine.spool.open(RUN, number, header(client, **fields))
    file.begin()
    return file


def receive(machine, size=SIZE, client="alice", number=1):
    """Receive so many bytes of a body, store what can be stored, and end; the file's name."""
    file = opened(machine, client, number)
    file.append(BODY[file.received : size])
    file.write_back()
    if size == len(BODY):
        file.sync()
    file.close()
    return file.name


@pytest.fixture
def machine(machines, part_bytes):
    return machines.new()


def test_another_machine_reads_a_complete_body(machines, machine):
    """And its header."""
    name = receive(machine)
    assert len(machines.names()) == 4
    other = machines.new().spool
    other.fetch(name)
    assert other.path(name).read_bytes()[: len(BODY)] == BODY
    assert other.header(name) == header()


@pytest.mark.parametrize(
    ("received", "resumed"), [(999, 0), (1000, 1000), (2999, 2000), (3456, 3000)]
)
def test_another_machine_resumes_after_the_last_whole_part(machines, machine, received, resumed):
    receive(machine, received) if received < len(BODY) else receive(machine, 3455)
    other = machines.new()
    file = opened(other)
    assert file.received == resumed
    assert file.read(0, resumed) == BODY[:resumed]
    file.append(BODY[resumed:])
    file.sync()
    file.close()
    third = machines.new().spool
    third.fetch(file.name)
    assert third.path(file.name).read_bytes()[: len(BODY)] == BODY


def test_the_last_part_is_stored_only_of_a_body_that_was_checked(machine):
    """Another server may accept an upload of the same header, and looks for all parts alone."""
    file = machine.spool.open(RUN, 1, fleet_pb2.UpdateHeader(client="alice", size_bytes=2000))
    file.begin()
    file.append(BODY[:2000])
    file.write_back()
    assert len(machine.ledger.body_object(file.name).parts) == 1
    file.sync()
    assert len(machine.ledger.body_object(file.name).parts) == 2
    file.close()


def test_the_same_process_resumes_at_the_last_byte(machine):
    receive(machine, 2345)
    file = opened(machine)
    assert file.received == 2345
    file.close()


def test_no_name_is_put_twice(machines, machine, monkeypatch):
    """Nor by an upload that is resumed or begun anew: a late PUT hits no other object."""
    put, keep = [], machines.objects.put
    spied = lambda name, data: (put.append(name), keep(name, data))  # noqa: E731
    monkeypatch.setattr(machines.objects, "put", spied)
    receive(machine, 2500)
    with monkeypatch.context() as patch:  # the third part is durable, but not noted
        patch.setattr(machine.ledger, "note_parts", lambda *_: False)
        file = opened(machine)
        file.append(BODY[2500:])
        with pytest.raises(StoreFaultError, match="its round is over"):
            file.sync()
        file.close()
    receive(machines.new())
    assert len(put) == len(set(put)) == 5


def test_an_incomplete_body_is_not_accepted(machines, machine):
    """It is missing for the fold, as is one that was never sent."""
    name = receive(machine, 3000)
    other = machines.new().spool
    for each in (name, f"{RUN}.1.bob"):
        with pytest.raises(IntegrityError, match="is missing in"):
            other.fetch(each)


def test_another_header_begins_anew_and_the_old_parts_are_deleted(machines, machine):
    receive(machine, 3000)
    before = set(machines.names())
    machine = machines.new()
    file = opened(machine, crc32c=1)
    assert file.received == 0
    file.close()
    machine.deleted()
    assert len(before) == 3
    assert machines.names() == []


def test_dropped_bytes_are_dropped_in_the_store_too(machines, machine, monkeypatch):
    """At once for the next upload, and then in the store."""
    receive(machine, 3000)
    waiting = []
    with monkeypatch.context() as patch:
        patch.setattr(machine.remote.deletions, "add_found", waiting.append)
        file = opened(machine)
        file.restart()
        file.close()
        file = opened(machine)
        assert file.received == 0
        file.append(BODY)
        file.sync()
        file.close()
    for find in waiting:
        machine.remote.deletions.add_found(find)
    machine.deleted()
    assert len(machines.names()) == 4
    other = machines.new().spool
    other.fetch(file.name)
    assert other.path(file.name).read_bytes()[:SIZE] == BODY


@pytest.mark.parametrize("lost", [False, True])
def test_a_resumed_upload_begins_anew_at_a_bad_part(machines, machine, lost):
    """What came before it stays on the disk, and is put again under other names."""
    receive(machine, 3000)
    name = machines.names()[1]
    machines.objects.delete([name]) if lost else machines.objects.put(name, bytes(1000))
    other = machines.new()
    file = opened(other)
    assert file.received == 1000
    file.append(BODY[1000:])
    file.sync()
    file.close()
    other.deleted()
    assert len(machines.names()) == 4
    third = machines.new().spool
    third.fetch(file.name)
    assert third.path(file.name).read_bytes()[: len(BODY)] == BODY


def test_a_damaged_accepted_body_is_a_fault_and_never_folded(machines, machine):
    """It is waited for, as an operator may restore it."""
    name = receive(machine)
    first, *_ = machines.names()
    good = machines.objects.get(first)
    other = machines.new().spool
    machines.objects.put(first, good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(DamagedObjectError, match="CRC-32C"):
        other.fetch(name)
    machines.objects.delete([first])
    with pytest.raises(MissingObjectError):
        other.fetch(name)
    assert not other.path(name).exists()
    machines.objects.put(first, good)
    other.fetch(name)


def test_a_copy_may_go_but_the_objects_stay_until_the_round_is_over(machines, machine):
    name = receive(machine)
    machine.spool.release_copy(name)
    machine.deleted()
    assert not machine.spool.path(name).exists()
    assert len(machines.names()) == 4
    machine.spool.fetch(name)
    assert machine.spool.header(name) == header()


@pytest.mark.parametrize("end", ["release_round", "discard_round", "release", "discard"])
def test_a_body_is_deleted_when_it_is_over_and_no_other(machines, machine, end):
    name = receive(machine)
    receive(machine, client="bob", number=10)
    other = [each for each in machines.names() if "/10/" in each]
    args = (RUN, 1) if end.endswith("round") else (name,)
    getattr(machine.spool, end)(*args)
    machine.deleted()
    assert machines.names() == other
    assert machine.ledger.rounds_with_bodies() == [(RUN, 10)]


def test_what_began_here_and_was_accepted_elsewhere_is_fetched_whole(machines, machine):
    """A client that moves leaves a part of its update, or of another one, at the first server."""
    name = receive(machine)
    other = machines.new().spool
    begun = other.open(RUN, 1, header())
    begun.append(b"\0" * 1500)
    begun.close()
    other.drop_copy(name)
    other.fetch(name)
    assert other.path(name).read_bytes()[: len(BODY)] == BODY
    assert len(machines.names()) == 4


@pytest.mark.parametrize("accepted", [True, False])
def test_a_late_masked_body_is_deleted_unless_a_message_accepts_it(machines, tmp_path, accepted):
    """A gate may have accepted what another one still receives."""
    masked_ledger(tmp_path).close()
    machine = machines.new()
    file = machine.spool.open(*AT[:2], header("a"))
    file.close()
    body = BodyObject(object="updates/x", header=b"", size_bytes=3, parts=(StoredPart(1, "0"),))
    machine.ledger.begin_body(file.name, *AT[:2], body)
    machine.remote.objects.put("updates/x.0", b"abc")
    machine.ledger.move_session(AT, SessionState.MASKING, shared="abcd")
    if accepted:
        send(machine.ledger, phases.BODY, "a")
        with pytest.raises(Refusal, match="accepted meanwhile"):
            machine.ledger.begin_body(file.name, *AT[:2], replace(body, object="updates/y"))
        assert not machine.ledger.give_up_body("updates/x")
    machine.spool.discard_late(file.name, *AT[:2])
    machine.deleted()
    assert machines.names() == (["updates/x.0"] if accepted else [])
    assert (machine.ledger.body_object(file.name) is not None) == accepted
    assert not machine.spool.path(file.name).exists()


def test_the_copies_of_a_round_may_go_at_a_gate(machines, machine):
    name, kept = receive(machine), receive(machine, client="bob", number=10)
    machine.spool.drop_copies(RUN, 1)
    machine.deleted()
    assert not machine.spool.path(name).exists()
    assert machine.spool.path(kept).exists()
    assert len(machines.names()) == 8


def test_a_part_that_arrives_after_its_round_is_deleted(machines, machine):
    """The upload ends, and nothing is left."""
    file = opened(machine)
    file.append(BODY)
    file.write_back()
    machine.spool.release_round(RUN, 1)
    machine.deleted()
    with pytest.raises(StoreFaultError, match="its round is over"):
        file.sync()
    file.close()
    machine.deleted()
    assert machines.names() == []


def test_a_start_deletes_what_a_killed_server_left_of_ended_rounds(machines, machine):
    receive(machine, number=1)
    kept = receive(machine, number=2)
    machine = machines.new()
    machine.spool.sweep([(RUN, 2)])
    machine.deleted()
    assert len(machines.names()) == 4
    machine.spool.fetch(kept)


def test_a_sweep_deletes_old_objects_without_a_row_alone(machines, machine):
    receive(machine, 3000)
    live = machines.names()
    orphan = "updates/run-abc/1/ab12-0011223344556677.0-00112233"
    machines.objects.put(orphan, b"1")
    assert sweep(machine.remote) == 0  # it is young
    assert sweep(machine.remote, -60.0) == 1
    machine.deleted()
    assert machines.names() == live


def test_sums_are_kept_for_another_machine(machines, machine):
    """Written again, they replace the earlier ones."""
    name = f"{RUN}.1..session-0"
    for content in (bytes(2500), BODY):
        machine.spool.path(name).write_bytes(content)
        machine.spool.keep(name, RUN, 1)
    machine.deleted()
    assert all(each.startswith(f"sums/{RUN}/1/") for each in machines.names())
    other = machines.new()
    other.spool.fetch(name)
    assert other.spool.path(name).read_bytes() == BODY
    other.spool.discard_round(RUN, 1)
    other.deleted()
    assert machines.names() == []


def test_the_disk_of_an_earlier_process_is_not_trusted(machines, machine, tmp_path):
    """It was not synced."""
    name = receive(machine)
    folder = machine.spool.path(name).parent
    machine.close()
    machines.last = None
    again = type(machine.spool)(folder, machine.remote)
    assert [*folder.iterdir()] == []
    assert not again.path(name).exists()


def test_a_store_that_is_down_while_a_body_arrives_is_tried_again_at_its_end(
    machines, machine, monkeypatch
):
    """And what it does not take then is a fault: the update is not accepted."""
    file = opened(machine)
    with monkeypatch.context() as patch:
        patch.setattr(machines.objects, "put", _down)
        file.append(BODY)
        file.write_back()
        with pytest.raises(StoreFaultError, match="down"):
            file.sync()
    assert machines.names() == []
    file.sync()
    file.close()
    assert len(machines.names()) == 4


def _down(*_):
    raise StoreFaultError("the store is down")


def test_a_whole_file_is_taken_in_once(machines, machine, tmp_path):
    """A repeat stores nothing; a lost or damaged part is stored again, under other names."""
    name = receive(machine)
    moved = machines.new()
    moved.spool.fetch(name)
    plain = Spool(tmp_path / "files")
    plain.path(name).write_bytes(moved.spool.path(name).read_bytes())
    target = ObjectSpool(tmp_path / "files", moved.remote, is_new=True)
    machine.remote.ledger.forget_bodies(list(machine.remote.ledger.body_object_names()))
    target.take_in(name, RUN, 1, is_body=True)
    [body] = machine.remote.ledger.bodies_of_file(name)
    assert body.header == header().SerializeToString(deterministic=True)
    target.take_in(name, RUN, 1, is_body=True)
    assert machine.remote.ledger.bodies_of_file(name) == [body]
    machine.remote.objects.put(body.names[2], b"damaged")
    target.take_in(name, RUN, 1, is_body=True)
    [again] = machine.remote.ledger.bodies_of_file(name)
    assert not {*again.names} & {*body.names}
    other = machines.new().spool
    other.fetch_kept(name)
    assert other.path(name).read_bytes()[: len(BODY)] == BODY
    other.fetch_kept("another file")
