"""What actions do, in words: for whoever is asked to confirm one, and for whoever did it."""

from fedloom.server.fleet import Hold
from fedloom.server.ledger import Point, Row
from fedloom.server.routes.client_views import ClientView
from fedloom.server.runs import ACTIVE


def rollback_words(run: Row, point: Point) -> str:
    """What rolling a run back does.

    Args:
        run: its row before.
        point: where it goes.
    """
    where = f"round {point.number}" if point.number else "its beginning"
    if not point.undone:
        return f"{run['id']} is at {where} already: nothing changes."
    words = (
        f"{run['id']} goes on from the model {point.digest[:12]} and the state of {where}. "
        f"{_counted(point.undone)} no part of it any more, and its open round, if any, is given "
        "up with its updates."
    )
    if run["privacy"] is not None:
        words += " The privacy that they spent stays spent: as many rounds fewer follow."
    if run["state"] not in ACTIVE:
        words += f" It was {run['state']}, and is paused from then on: resume it to go on."
    return words


def _counted(numbers: tuple[int, ...]) -> str:
    if len(numbers) == 1:
        return f"Round {numbers[0]} is"
    return f"{len(numbers)} committed rounds, {numbers[0]} to {numbers[-1]}, are"


def hold_words(client: ClientView, wanted: Hold | None) -> str:
    """What putting a client in quarantine, draining it or releasing it does."""
    name, works = client.name, f" It works on {client.task} now." if client.task else ""
    if client.hold == wanted:
        is_so = {None: "asked like any other", Hold.DRAIN: "drained"}.get(wanted, "in quarantine")
        return f"{name} is {is_so} already: nothing changes."
    if wanted is Hold.QUARANTINE:
        given_up = f" Its work on {client.task} is given up." if client.task else ""
        return (
            f"{name} is not asked any more and its updates are refused, until it is released."
            f"{given_up} What of it counted before stays."
        )
    if wanted is Hold.DRAIN:
        return f"{name} ends what it does, which counts, and is not asked again.{works}"
    return f"{name} is asked again as soon as it is idle, and its updates count."


def revoke_words(name: str, *, changed: bool) -> str:
    """What revoking a client does."""
    if not changed:
        return f"{name} is revoked already: nothing changes."
    return (
        f"{name}'s certificates and unused tokens become worthless and its connection is cut at "
        "once. It comes back only with a new token."
    )
