"""A store belongs to one ledger: no other one sweeps it, and none starts over a wrong one."""

from contextlib import closing

import pytest

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.server.config import ServerConfig
from fedloom.server.ledger import Ledger
from fedloom.server.storage.objects.claim import FOLDER
from fedloom.server.storage.objects.folder import FolderObjects
from fedloom.server.storage.opening import open_storage

RUN = {
    "id": "run-1", "name": "run", "spec": {}, "state": "finished", "reason": "", "model": "0" * 64,
}  # fmt: skip


@pytest.fixture
def start(tmp_path):
    """Open the storage of a state directory with a store, and close it."""

    def start(state="state", store="store"):
        url = (tmp_path / store).as_uri() if store else ""
        (tmp_path / state).mkdir(exist_ok=True)
        with closing(Ledger.in_directory(tmp_path / state)) as ledger:
            open_storage(tmp_path / state, ServerConfig(store=url), ledger).close()
        return FolderObjects(tmp_path / store)

    return start


def test_a_ledger_starts_over_its_store_again(start):
    """It claims it once, and the start leaves nothing else."""
    assert len([*start().list("")]) == 1
    [owner] = start().list("")
    assert owner.name.startswith(f"{FOLDER}/")


def test_a_store_of_another_ledger_is_refused(start):
    """And stays as it was."""
    start("one")
    with pytest.raises(UsageError, match="Expected a store that no ledger uses"):
        start("two")
    assert len([*start("one").list("")]) == 1


def test_another_store_is_refused(start):
    """An empty one would look as if everything was lost."""
    start()
    with pytest.raises(UsageError, match="Expected the store of this ledger"):
        start(store="other")
    with pytest.raises(UsageError, match="Expected the object store of this ledger"):
        start(store="")


def test_a_store_that_two_ledgers_use_is_refused(start):
    """As when both were started for the first time at once."""
    start().put(f"{FOLDER}/another", b"")
    with pytest.raises(UsageError, match="which others use, too"):
        start()


def test_a_ledger_with_models_in_files_is_refused(start, tmp_path):
    start(store="")
    ledger = Ledger.in_directory(tmp_path / "state")
    ledger.add_run(RUN, 100)
    ledger.close()
    with pytest.raises(UsageError, match="Expected a new ledger"):
        start()
    start(store="")


def test_a_store_that_does_not_work_is_named(start, tmp_path, monkeypatch):
    """With the step that fails, and what to do; no ledger is left open."""
    monkeypatch.setattr(FolderObjects, "get", lambda *_: b"other bytes")
    with pytest.raises(UnavailableError, match=r"fails at GET after PUT.*a replica"):
        start()


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "fedloom.server.storage.objects.s3", raising=False)
    with (
        pytest.raises(UsageError, match=r"pip install 'fedloom\[s3\]'"),
        closing(Ledger.in_directory(tmp_path)) as ledger,
    ):
        open_storage(tmp_path, ServerConfig(store="s3://bucket/prefix"), ledger)
