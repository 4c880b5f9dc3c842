"""The kind of a task, and of the round that it belongs to."""

from enum import StrEnum


class Kind(StrEnum):
    """What clients do."""

    TRAIN = "train"
    EVALUATE = "evaluate"
    MESSAGE = "message"
    """Answer a message of a Flower `ServerApp`."""
