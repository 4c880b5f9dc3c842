"""What a check of a client found: one sentence each, with what to do about it."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Weight: TypeAlias = Literal["fault", "doubt"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that would go wrong.

    Attributes:
        check: which check found it, such as `shapes`; `check(…, ignore=[…])` leaves it out.
        sentence: what is wrong and what to do.
        weight: a fault loses rounds; a doubt may be meant.
    """

    check: str
    sentence: str
    weight: Weight = "fault"

    def __str__(self) -> str:
        """The sentence."""
        return self.sentence


CHECKS = {
    "raises": "train and evaluate end without an error",
    "returns": "train returns (params, num_examples, metrics) or an Update",
    "names": "what is returned are tensors of the model",
    "shapes": "in their shapes",
    "dtypes": "and numbers",
    "finite": "that are finite",
    "limits": "and not larger than a server takes",
    "learns": "training changes something",
    "weight": "the number of examples, or the weight, is above 0",
    "metrics": "metrics are finite numbers by name",
    "evaluate": "evaluate is there, returns (num_examples, metrics) and changes nothing",
    "same": "the same task gives the same update",
    "state": "whatever tasks were done before",
    "epochs": "more epochs, or steps, give another update",
    "learning_rate": "another learning rate likewise",
    "stop": "training ends soon after it is asked to",
    "threads": "with no more threads than were allowed",
    "copies": "the client can be pickled, as a simulation's workers need",
    "server": "a server takes the update",
}
"""What is looked at, in order."""
