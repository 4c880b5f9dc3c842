"""Reads and writes at a position: both ways that systems have, one against the other."""

import os
import random
import sys
import threading
from types import SimpleNamespace

import pytest

from fedloom.client.state import process_lock
from fedloom.protocol import positional_files

WAYS = {
    "at": (positional_files.read_at, positional_files.write_at),
    "seek": (positional_files.seek_and_read, positional_files.seek_and_write),
}


@pytest.mark.parametrize("way", WAYS)
def test_both_ways_do_what_a_list_of_bytes_does(tmp_path, way):
    """Random reads and writes, past the end too."""
    read, write = WAYS[way]
    draw, model = random.Random(1), bytearray()
    handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    for _ in range(300):
        offset, size = draw.randrange(600), draw.randrange(80)
        if draw.random() < 0.5:
            data = draw.randbytes(size)
            assert write(handle, data, offset) == size
            if size:
                model.extend(bytes(max(0, offset - len(model))))
                model[offset : offset + size] = data
        else:
            assert read(handle, size, offset) == model[offset : offset + size]
    os.close(handle)


def test_threads_that_seek_do_not_read_each_other_s_places(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 64)
    handle, wrong = os.open(path, os.O_RDONLY), []

    def read(seed):
        draw = random.Random(seed)
        for _ in range(2000):
            offset = draw.randrange(16_000)
            got = positional_files.seek_and_read(handle, 8, offset)
            if got != bytes((offset + i) % 256 for i in range(8)):
                wrong.append(offset)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(handle)
    assert wrong == []


def test_a_buffer_is_filled_up_to_the_end_of_the_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    handle = os.open(path, os.O_RDONLY)
    for platform in (sys.platform, "win32"):
        monkeypatch.setattr(positional_files, "sys", SimpleNamespace(platform=platform))
        into = bytearray(b"......")
        assert positional_files.read_into(handle, memoryview(into), 6) == 4
        assert into == b"6789.."
    os.close(handle)


def test_a_lock_of_windows_excludes_a_second_agent(tmp_path, monkeypatch):
    """With its calls replaced by a record of locked bytes, as `msvcrt.locking` keeps one."""
    locked = set()

    def locking(handle, mode, size):
        del mode, size
        key = (os.fstat(handle).st_ino, os.lseek(handle, 0, os.SEEK_CUR))
        if key in locked:
            raise PermissionError(13, "Permission denied")
        locked.add(key)

    monkeypatch.setattr(process_lock, "sys", SimpleNamespace(platform="win32"))
    fake = SimpleNamespace(locking=locking, LK_NBLCK=2)
    monkeypatch.setattr(process_lock, "msvcrt", fake, raising=False)
    with process_lock.only_agent(tmp_path):
        process_lock._held.clear()  # as another process sees it
        assert process_lock.is_locked(tmp_path)
        with (
            pytest.raises(process_lock.UsageError, match=f"process {os.getpid()}"),
            process_lock.only_agent(tmp_path),
        ):
            pass
