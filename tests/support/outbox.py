"""A client that does a task as its agent would, without a server."""

from fedloom.client.agent.task_run import TaskRun, task_from_message
from fedloom.client.state.store import ClientStore
from fedloom.protocol.tensors.container import write_file
from fedloom.protocol.v1 import fleet_pb2

_WEIGHTINGS = {
    "client": fleet_pb2.WEIGHTING_CLIENT,
    "examples": fleet_pb2.WEIGHTING_EXAMPLES,
    "uniform": fleet_pb2.WEIGHTING_UNIFORM,
}


def update_of(client, params, folder, *, weighting):
    """Have a client do a task; gives the header of the update in its outbox."""
    store = ClientStore(folder / "client-state")
    digest = write_file(folder / "model", params)
    (folder / "model").replace(store.model_path(digest))
    message = fleet_pb2.Task(
        key=fleet_pb2.TaskKey(run="walk-000000", round=1),
        kind=fleet_pb2.TASK_KIND_TRAIN,
        model=fleet_pb2.ModelRef(digest=digest),
        train=fleet_pb2.TrainSettings(epochs=2, batch_size=20, learning_rate=0.1),
        rule=fleet_pb2.ClientRule(name="plain"),
        evaluate=True,
        weighting=_WEIGHTINGS[weighting],
    )
    return TaskRun(client, task_from_message(message), message, "site-a", store).run()
