"""The checks of a client; each finding is one sentence with a remedy."""

from fedloom.client.update.validate import Finding

__all__ = ["CHECKS", "Finding"]

CHECKS = {
    "raises": "train and evaluate end without an error",
    "returns": "train returns (params, num_examples, metrics) or an Update",
    "names": "the returned tensors have names of the model",
    "shapes": "the returned tensors have the model's shapes",
    "dtypes": "the returned tensors are numeric",
    "finite": "the returned values are finite",
    "limits": "the update is within the run's limits",
    "learns": "training changes the model",
    "weight": "the number of examples, or the weight, is above 0",
    "metrics": "metrics are finite numbers by name",
    "evaluate": "evaluate exists, returns (num_examples, metrics) and changes nothing",
    "same": "the same task gives the same update",
    "state": "earlier tasks do not change the update",
    "epochs": "more epochs, or steps, change the update",
    "learning_rate": "another learning rate changes the update",
    "stop": "training ends soon after a stop request",
    "threads": "training uses no more than the allowed threads",
    "copies": "the client can be pickled, for a simulation's workers",
    "server": "a server accepts the update",
}
"""The checks by name, in order."""
