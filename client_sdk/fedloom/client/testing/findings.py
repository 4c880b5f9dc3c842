"""What a check of a client found: one sentence each, with what to do about it."""

from fedloom.client.update.validate import Finding

__all__ = ["CHECKS", "Finding"]

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
