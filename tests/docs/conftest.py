"""What tests of the documentation share."""

import pytest

from fedloom.client.store import ClientStore
from fedloom.client.training import Work, task_from_message
from fedloom.protocol.container import write_file
from fedloom.protocol.v1 import fleet_pb2

_WEIGHTINGS = {
    "client": fleet_pb2.WEIGHTING_CLIENT,
    "examples": fleet_pb2.WEIGHTING_EXAMPLES,
}


@pytest.fixture
def updates_of(tmp_path):
    """Have a client do a task as its agent would; gives the header of the update in its outbox."""

    def do(client, params, *, weighting):
        store = ClientStore(tmp_path / "client-state")
        digest = write_file(tmp_path / "model", params)
        (tmp_path / "model").replace(store.model_path(digest))
        message = fleet_pb2.Task(
            key=fleet_pb2.TaskKey(run="walk-000000", round=1),
            kind=fleet_pb2.TASK_KIND_TRAIN,
            model=fleet_pb2.ModelRef(digest=digest),
            train=fleet_pb2.TrainSettings(epochs=2, batch_size=20, learning_rate=0.1),
            rule=fleet_pb2.ClientRule(name="plain"),
            evaluate=True,
            weighting=_WEIGHTINGS[weighting],
        )
        return Work(client, task_from_message(message), message, "site-a", store).run()

    return do
