"""What actions do, in words: for whoever is asked to confirm one, and for whoever did it."""

from fedloom.server.ledger import Point, Row
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
