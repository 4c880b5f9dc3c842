"""A server that speaks S3, and the storage of machines that use a store one after another."""

import pytest

from fedloom.server.ledger import Ledger
from fedloom.server.storage.objects import object_spool, parts
from fedloom.server.storage.objects.folder import FolderObjects
from fedloom.server.storage.objects.object_models import ObjectModels
from fedloom.server.storage.objects.object_spool import ObjectSpool
from fedloom.server.storage.objects.remote import RemoteStorage
from fedloom.server.storage.objects.retries import RetriedObjects
from fedloom.server.store_url import StoreUrl
from fedloom.server.threads import Thread
from support.object_store import CREDENTIALS, S3Server


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    server = S3Server(tmp_path_factory.mktemp("s3") / "log")
    yield server
    server.close()


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def part_bytes(monkeypatch):
    """Parts of 1,000 bytes."""
    for module in (parts, object_spool):
        monkeypatch.setattr(module, "PART_BYTES", 1000)
    return 1000


class Machine:
    """A server's storage over an object store, on a disk of its own.

    Args:
        folder: of the disk.
        objects: the store, which other machines may use after this one.
        url: of the ledger's database.
    """

    def __init__(self, folder, objects, url):
        self.ledger = Ledger(url)
        self.in_ledger = Thread("ledger")
        self.remote = RemoteStorage(
            url=StoreUrl(folder="/store"), objects=RetriedObjects(objects, (0.01,) * 4),
            ledger=self.ledger, in_ledger=self.in_ledger,
        )  # fmt: skip
        self.models = ObjectModels(folder / "models", self.remote)
        self.spool = ObjectSpool(folder / "spool", self.remote)

    def deleted(self):
        """Wait until what was to be deleted is."""
        self.remote.deletions._thread.submit(int).result()

    def close(self):
        self.remote.close()
        self.in_ledger.close()
        self.ledger.close()


class Machines:
    """Machines one after another, with one store and one database."""

    def __init__(self, directory):
        self.directory, self.count, self.last = directory, 0, None
        self.objects = FolderObjects(directory / "store")

    def new(self, objects=None):
        """The next machine, whose disk is empty; the last one is gone."""
        self.close()
        self.count += 1
        folder = self.directory / str(self.count)
        url = f"sqlite:///{self.directory / 'ledger.sqlite'}"
        self.last = Machine(folder, objects or self.objects, url)
        return self.last

    def names(self):
        return sorted(each.name for each in self.objects.list(""))

    def close(self):
        if self.last is not None:
            self.last.close()


@pytest.fixture
def machines(tmp_path):
    made = Machines(tmp_path)
    yield made
    made.close()
