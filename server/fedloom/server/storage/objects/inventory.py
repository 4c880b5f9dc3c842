"""Which objects that rows of the ledger name are not in the object store, as after a restore.

Beside a running server, too: an object is lost if it is missing, and a row that is read afterwards
still names it, since rows are deleted before their objects, and no name is used twice.
"""

from dataclasses import dataclass

from fedloom.server.ledger import Ledger
from fedloom.server.storage.objects.interface import MissingObjectError, Objects
from fedloom.server.storage.objects.object_models import FOLDER
from fedloom.server.storage.objects.object_spool import SUMS, UPDATES
from fedloom.server.storage.objects.parts import part_names


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the store has of what the ledger names.

    Attributes:
        count: objects that are named.
        lost: what each object that is missing belongs to, by its name.
    """

    count: int
    lost: dict[str, str]


def take_inventory(ledger: Ledger, objects: Objects) -> Inventory:
    """Compare rows with the store; an object that a listing lacks is asked for.

    Raises:
        StoreFaultError: the store does not answer.
    """
    named = _named(ledger)
    listed = {each.name for folder in (FOLDER, UPDATES, SUMS) for each in objects.list(folder)}
    missing = [name for name in named if name not in listed and _is_missing(objects, name)]
    still = _named(ledger) if missing else {}
    return Inventory(len(named), {name: named[name] for name in missing if name in still})


def _named(ledger: Ledger) -> dict[str, str]:
    """What each object that counts belongs to, by its name."""
    found = {}
    for digest, model in ledger.model_objects():
        for name in part_names(model.object, model.size_bytes):
            found[name] = f"the model {digest[:12]}"
    for file, body in ledger.body_objects():
        found |= dict.fromkeys(
            body.names, f"the update {file}" if body.header else f"the sum {file}"
        )
    return found


def _is_missing(objects: Objects, name: str) -> bool:
    try:
        objects.get(name)
    except MissingObjectError:
        return True
    return False
