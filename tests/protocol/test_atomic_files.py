"""Files that are written completely or not at all."""

import errno

import pytest

from fedloom.protocol.atomic_files import drafted, write_whole


def test_a_file_is_written_and_replaced_without_temporary_files(tmp_path):
    """Text and bytes are written unchanged."""
    path = tmp_path / "file"
    for data, wanted in (("ä\n", b"\xc3\xa4\n"), ("a,b\r\n", b"a,b\r\n"), (b"\xff", b"\xff")):
        write_whole(path, data, sync=True)
        assert path.read_bytes() == wanted
        assert list(tmp_path.iterdir()) == [path]


def test_a_durable_file_is_synced_before_its_rename_and_its_folder_after_it(tmp_path, monkeypatch):
    """Otherwise the name could exist without the bytes, or not at all."""
    path, synced = tmp_path / "file", []
    monkeypatch.setattr("os.fsync", lambda _: synced.append(path.exists()))
    write_whole(path, "in a moment")
    assert synced == []
    path.unlink()
    write_whole(path, "for good", sync=True)
    assert synced == [False, True]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_bytes_and_no_draft(tmp_path, error):
    """On a full disk or after an interruption."""
    path = tmp_path / "file"
    write_whole(path, "old")

    def fail():
        with drafted(path) as draft:
            draft.write_text("half of it")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_draft_is_never_visible_under_the_name(tmp_path):
    path = tmp_path / "file"
    with drafted(path) as draft:
        draft.write_text("half of it")
        assert not path.exists()
        assert draft.parent == path.parent
        assert draft.name.startswith(".file.")  # the pattern that `client leave` deletes
    assert path.exists()
