"""Which ledger an object store belongs to: each deletes what its own rows do not name.

The ledger has an id, and the store an object of that name. A store that another ledger has claimed
is refused, and so is one that lacks the claim: it would look as if all models were lost.
"""

from fedloom.protocol.errors import UsageError
from fedloom.server.ledger import Ledger
from fedloom.server.storage.objects.interface import MissingObjectError, Objects, unique
from fedloom.server.store_url import StoreUrl

FOLDER = "owner"


def claim_store(ledger: Ledger, objects: Objects, url: StoreUrl, *, moving: bool = False) -> None:
    """Claim an object store for a new ledger, or check that it is that of the ledger.

    Args:
        ledger: that claims it.
        objects: the store.
        url: its setting.
        moving: whether the ledger may have runs, whose models are being moved there.

    Raises:
        UsageError: it is another ledger's, or the ledger's models lie elsewhere.
        StoreFaultError: the store does not answer.
    """
    claimed, owners = ledger.store_claim(), {each.name for each in objects.list(FOLDER)}
    if claimed is None:
        _check_new(ledger, owners, url, moving=moving)
        claimed = unique(f"{FOLDER}/ledger")
        objects.put(claimed, b"This store belongs to the ledger that has this name.\n")
        owners = {each.name for each in objects.list(FOLDER)}
        if owners <= {claimed}:  # a listing may lag
            ledger.claim_store(claimed)
        else:
            objects.delete([claimed])
    if owners - {claimed}:
        raise UsageError(
            f"Expected a store of one ledger, got {url}, which others use, too: choose another "
            "bucket or prefix."
        )
    try:
        objects.get(claimed)
    except MissingObjectError:
        raise UsageError(
            f"Expected the store of this ledger, got {url}, which lacks {claimed}: set `store` in "
            "server.toml to the bucket and prefix that this ledger began with."
        ) from None


def _check_new(ledger: Ledger, owners: set[str], url: StoreUrl, *, moving: bool) -> None:
    if owners:
        raise UsageError(
            f"Expected a store that no ledger uses, got {url}: choose another bucket or prefix, or "
            "set `database` to the ledger that it belongs to."
        )
    if ledger.has_runs() and not moving:
        raise UsageError(
            "Expected a new ledger for an object store, got one whose models are in files: empty "
            "`store` in server.toml, and move them with `fedloom server move`."
        )


def check_unclaimed(ledger: Ledger) -> None:
    """Check that a ledger's models are in files.

    Raises:
        UsageError: they are in an object store.
    """
    if ledger.store_claim() is not None:
        raise UsageError(
            "Expected the object store of this ledger, got an empty `store` in server.toml: set it "
            "to the bucket and prefix that the ledger began with. If a `fedloom server move` was "
            "interrupted, run it again."
        )
