"""The words of the update of a masked task, from the task alone."""

from fedloom.protocol.task_description import TaskDescription
from fedloom.strategies.masking.words import MaskedWords


def words_of(task: TaskDescription) -> MaskedWords:
    """Return the words of a client's update; the server has the same from the run.

    Raises:
        ValueError: the task is not masked.
    """
    if task.masking is None:
        raise ValueError(f"Expected a masked task, got one in clear: round {task.round}.")
    return MaskedWords.of_round(
        task.masking.metrics,
        weighting=task.weighting,
        max_examples=task.masking.max_examples,
        trains=task.train,
        evaluates=task.evaluates,
        private=task.privacy is not None,
    )
