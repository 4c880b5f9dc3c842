"""Spool files: resumed after an interruption, never mixed up, never shared."""

import os

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.storage.spool import Spool

RUN = "run-abc"


def header(client="alice", size=100, **fields):
    return fleet_pb2.UpdateHeader(client=client, size_bytes=size, **fields)


def receive(spool, head, body, number=1):
    file = spool.open(RUN, number, head)
    file.append(body)
    file.close()
    return file.name


@pytest.fixture
def spool(tmp_path):
    """An empty spool."""
    return Spool(tmp_path)


def test_body_and_header_are_read_back(spool):
    """The header can be read from the file alone."""
    head = header(weight=3.0, model_digest="abc")
    name = receive(spool, head, bytes(range(100)))
    assert spool.path(name).read_bytes()[:100] == bytes(range(100))
    assert spool.header(name) == head


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("received", [0, 1, 60, 100])
def test_interrupted_upload_is_resumed(tmp_path, restarted, received):
    """In the same process, and in the next one."""
    spool = Spool(tmp_path)
    receive(spool, header(), bytes(range(received)))
    if restarted:
        spool = Spool(tmp_path)
    file = spool.open(RUN, 1, header())
    assert file.received == received
    assert file.read(0, received) == bytes(range(received))
    file.append(bytes(100 - received))
    file.close()
    assert spool.header(file.name) == header()


def test_another_update_of_the_client_starts_from_zero(spool):
    """If its header differs in anything."""
    receive(spool, header(), bytes(60))
    for other in (header(crc32c=1), header(size=200), header(size=20), header(weight=2.0)):
        file = spool.open(RUN, 1, other)
        assert file.received == 0
        file.close()
        assert spool.header(file.name) == other


def test_restart_drops_the_received_bytes(spool):
    file = spool.open(RUN, 1, header())
    file.append(bytes(60))
    file.restart()
    assert file.received == 0
    file.close()
    again = spool.open(RUN, 1, header())
    assert again.received == 0
    again.close()


SMALL = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@SMALL
@given(st.integers(0, 200), st.integers(0, 60))
def test_truncated_file_is_resumed_correctly(tmp_path, length, received):
    """Or from the start; a crash may leave any length."""
    spool = Spool(tmp_path)
    name = receive(spool, header(size=60), bytes(range(received)))
    path = spool.path(name)
    os.truncate(path, min(length, path.stat().st_size))
    file = spool.open(RUN, 1, header(size=60))
    assert file.read(0, file.received) == bytes(range(received))[: file.received]
    file.close()
    spool.release(name)


@SMALL
@given(st.binary(max_size=80))
@example(bytes(8) + header(size=4).SerializeToString(deterministic=True))
def test_damaged_file_starts_from_zero(tmp_path, content):
    """It is neither used nor an error."""
    spool = Spool(tmp_path)
    (tmp_path / f"{RUN}.1.alice").write_bytes(content)
    file = spool.open(RUN, 1, header(size=4))
    assert file.received <= 4
    file.close()
    assert spool.header(file.name) == header(size=4)


def test_reused_file_has_only_the_new_update(spool, tmp_path):
    """The new body, header and length."""
    name = receive(spool, header(size=1000), b"\xaa" * 1000)
    inode = spool.path(name).stat().st_ino
    spool.release(name)
    assert not spool.path(name).exists()
    file = spool.open(RUN, 2, header(client="bob", size=10))
    assert file.received == 0
    file.append(bytes(10))
    file.close()
    path = spool.path(file.name)
    assert path.stat().st_ino == inode
    assert b"\xaa" not in path.read_bytes()
    assert spool.header(file.name) == header(client="bob", size=10)


def test_free_files_survive_a_restart(tmp_path):
    """Their numbers stay unique."""
    spool = Spool(tmp_path)
    for client in ("alice", "bob"):
        spool.release(receive(spool, header(client), bytes(100)))
    spool = Spool(tmp_path)
    for client in ("carol", "dave", "eve"):
        receive(spool, header(client), bytes(100))
    spool.release_round(RUN, 1)
    assert len(list(tmp_path.iterdir())) == 3


def test_free_files_are_limited(tmp_path):
    spool = Spool(tmp_path, keep=2)
    names = [receive(spool, header(f"c{n}"), bytes(100)) for n in range(5)]
    for name in names:
        spool.release(name)
        spool.release(name)  # a repeat releases nothing
    assert sorted(p.name[:5] for p in tmp_path.iterdir()) == ["free-", "free-"]


def test_file_in_use_is_not_reused(spool, tmp_path):
    """An upload that continues after the release cannot write into another."""
    late = spool.open(RUN, 1, header("late"))
    late.append(b"\xaa" * 10)
    spool.release_round(RUN, 1)
    other = spool.open(RUN, 2, header("other"))
    other.append(bytes(100))
    late.append(b"\xaa" * 90)
    late.sync()
    late.close()
    other.close()
    assert spool.path(other.name).read_bytes()[:100] == bytes(100)
    assert spool.header(other.name) == header("other")
    assert [p.name for p in tmp_path.iterdir()] == [other.name]
    spool.release(other.name)
    assert [p.name[:5] for p in tmp_path.iterdir()] == ["free-"]


def test_round_releases_only_its_files(spool):
    """Rounds 1 and 11, and clients with dots in their names, are distinct."""
    for number, client in ((1, "a"), (1, "11.b"), (11, "a"), (11, "1.b")):
        receive(spool, header(client), bytes(100), number)
    spool.release_round(RUN, 1)
    assert spool.header(f"{RUN}.11.a") == header("a")
    assert spool.header(f"{RUN}.11.1.b") == header("1.b")
    for name in (f"{RUN}.1.a", f"{RUN}.1.11.b"):
        with pytest.raises(IntegrityError, match="missing in the spool"):
            spool.header(name)


def test_sweep_keeps_open_rounds(spool, tmp_path):
    """Files of ended rounds are released."""
    for number in (1, 2, 21):
        receive(spool, header(), bytes(100), number)
    spool.sweep([(RUN, 2)])
    kept = [p.name for p in tmp_path.iterdir() if not p.name.startswith("free-")]
    assert kept == [f"{RUN}.2.alice"]


def test_accepted_file_without_footer_is_damaged(spool):
    spool.path("x").write_bytes(bytes(3))
    with pytest.raises(IntegrityError, match="accepted update x in the spool has no footer"):
        spool.header("x")
