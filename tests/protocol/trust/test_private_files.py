"""Files with keys: readable only by their owner, written completely or not at all."""

import os
import stat
from pathlib import Path

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.protocol.trust.private_files import private_directory, read_private, write_private


def _mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_modes_do_not_depend_on_the_umask(tmp_path):
    for umask in (0o000, 0o022, 0o077):
        before = os.umask(umask)
        try:
            path = tmp_path / f"{umask:o}" / "keys" / "key.pem"
            write_private(path, b"secret")
        finally:
            os.umask(before)
        assert (_mode(path), _mode(path.parent)) == (0o600, 0o700)


def test_file_is_never_readable_by_others(tmp_path, monkeypatch):
    """At the rename the complete temporary file already has mode 0600."""
    seen = []
    rename = Path.replace

    def spy(self, target):
        seen.append((_mode(self), self.read_bytes()))
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", spy)
    write_private(tmp_path / "keys" / "key.pem", b"secret")
    assert seen == [(0o600, b"secret")]


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path, monkeypatch):
    path = tmp_path / "keys" / "key.pem"
    write_private(path, b"old")

    def fail(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_private(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_a_replaced_file_gets_mode_0600(tmp_path):
    """Also if the old file has a wider mode."""
    folder = private_directory(tmp_path / "keys")
    path = folder / "key.pem"
    path.write_bytes(b"a much longer old content")
    path.chmod(0o644)
    write_private(path, b"new")
    assert (read_private(path), _mode(path)) == (b"new", 0o600)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path, mode):
    """Others could replace a key."""
    folder = tmp_path / "keys"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(UsageError, match=f"its mode is {mode:o}: chmod go-w"):
        write_private(folder / "key.pem", b"secret")


def test_a_file_in_the_directorys_place_is_refused(tmp_path):
    (tmp_path / "keys").write_bytes(b"")
    with pytest.raises(UsageError, match="got a file"):
        private_directory(tmp_path / "keys")


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o666])
def test_a_key_that_others_could_read_or_change_is_not_used(tmp_path, mode):
    """The message says what to do."""
    path = tmp_path / "keys" / "key.pem"
    write_private(path, b"secret")
    path.chmod(mode)
    with pytest.raises(UsageError, match=f"got {mode:o}. Set it: chmod 600"):
        read_private(path)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440])
def test_a_key_for_owner_and_reading_group_is_used(tmp_path, mode):
    """Container platforms mount secrets readable by a group."""
    path = tmp_path / "keys" / "key.pem"
    write_private(path, b"secret")
    path.chmod(mode)
    assert read_private(path) == b"secret"
