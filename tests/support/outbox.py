"""A client that performs a task like its agent, without a server."""

from fedloom.client.agent.task_run import TaskRun, task_from_message
from fedloom.client.state.store import ClientStore
from fedloom.protocol.task_description import FileRef, TaskDescription
from fedloom.protocol.task_message import to_message
from fedloom.protocol.tensors.container import write_file
from fedloom.strategies import Plain, RoundSettings


def update_of(client, params, folder, *, weighting):
    """Let a client perform a task; returns the header of the update in its outbox."""
    store = ClientStore(folder / "client-state")
    digest = write_file(folder / "model", params)
    (folder / "model").replace(store.model_path(digest))
    message = to_message(
        TaskDescription(
            run="walk-000000",
            round=1,
            model=FileRef(digest=digest),
            settings=RoundSettings(epochs=2, steps=None, batch_size=20, learning_rate=0.1),
            rule=Plain(),
            evaluate=True,
            weighting=weighting,
        )
    )
    return TaskRun(client, task_from_message(message), message, "site-a", store).run()
