"""Opens the storage of a server: its ledger, and its models and updates in files or objects."""

from pathlib import Path

from fedloom.protocol.errors import UnavailableError
from fedloom.server.config import ServerConfig
from fedloom.server.ledger import Ledger
from fedloom.server.storage.context import StorageContext
from fedloom.server.storage.model_store import ModelStore
from fedloom.server.storage.objects.check import check_store
from fedloom.server.storage.objects.claim import check_unclaimed, claim_store
from fedloom.server.storage.objects.interface import StoreFaultError
from fedloom.server.storage.objects.object_models import ObjectModels
from fedloom.server.storage.objects.object_spool import ObjectSpool
from fedloom.server.storage.objects.opening import open_objects
from fedloom.server.storage.objects.remote import RemoteStorage
from fedloom.server.storage.objects.retries import RetriedObjects
from fedloom.server.storage.spool import Spool
from fedloom.server.store_url import StoreUrl
from fedloom.server.threads import Thread

MODELS, SPOOL, GATE_SPOOL = "models", "spool", "gate-spool"


def open_storage(
    state_dir: Path,
    config: ServerConfig,
    ledger: Ledger,
    *,
    moving: bool = False,
    is_target: bool = False,
    spool: str = SPOOL,
) -> StorageContext:
    """Open the storage of a state directory, whose ledger is open.

    Args:
        state_dir: of the server.
        config: its settings.
        ledger: of its models.
        moving: whether the ledger's models are being moved, from there or there.
        is_target: whether they are being moved there.
        spool: folder of copies of updates, of one storage alone.

    Raises:
        UnavailableError: the object store does not do what it must.
        UsageError: the ledger's models are not where `store` says.
    """
    if config.store:
        url = StoreUrl.parse(config.store)
        copies = state_dir / spool
        return _with_objects(state_dir, copies, url, ledger, moving=moving, is_target=is_target)
    if not moving:
        check_unclaimed(ledger)
    models = ModelStore(state_dir / MODELS)
    return StorageContext(ledger=ledger, models=models, spool=Spool(state_dir / spool))


def _with_objects(
    state_dir: Path, copies: Path, url: StoreUrl, ledger: Ledger, *, moving: bool, is_target: bool
) -> StorageContext:
    try:
        objects = RetriedObjects(open_objects(url))
        check_works(objects, url)
        claim_store(ledger, objects, url, moving=moving)
    except StoreFaultError as error:
        raise UnavailableError(f"Expected an answer of the object store, got: {error}") from error
    in_ledger = Thread("ledger")
    remote = RemoteStorage(url=url, objects=objects, ledger=ledger, in_ledger=in_ledger)
    return StorageContext(
        ledger=ledger,
        models=ObjectModels(state_dir / MODELS, remote),
        spool=ObjectSpool(copies, remote, is_new=is_target),
        in_ledger=in_ledger,
        remote=remote,
    )


def check_works(objects: RetriedObjects, url: StoreUrl) -> None:
    """Try what the server needs of an object store.

    Raises:
        UnavailableError: something does not work.
    """
    last = check_store(objects)[-1]
    if last.error:
        raise UnavailableError(f"{url} fails at {last.name}: {last.error} {last.advice}")
