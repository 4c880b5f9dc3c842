"""pfl-research on one of simulation.py's tasks: run by it, with a Python that has it.

Two processes that share each cohort, as its guide on distributed simulations has it: the first
starts the second, and they sum by torch.distributed. On a GPU it is one process, since NCCL refuses
two on one card. pfl takes examples in the order in which they lie, without shuffling.
"""

import importlib.metadata
import os
import socket
import subprocess
import sys

PROCESSES = 2 if os.environ.get("SIMULATION_DEVICE", "cpu") == "cpu" else 1
if (
    PROCESSES > 1 and "PFL_WORKER_RANK" not in os.environ
):  # before pfl is imported, which connects them
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    os.environ["PFL_WORKER_ADDRESSES"] = ",".join([f"127.0.0.1:{port}"] * PROCESSES)
    for rank in range(1, PROCESSES):
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={**os.environ, "PFL_WORKER_RANK": str(rank)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    os.environ["PFL_WORKER_RANK"] = "0"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.data.pytorch import PyTorchTensorDataset  # noqa: E402
from pfl.data.sampling import get_user_sampler  # noqa: E402
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams  # noqa: E402
from pfl.metrics import Metrics, Weighted  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402
from simulation_tasks import BATCH, FOREVER, LEARNING_RATE, SEED, child, loss_of  # noqa: E402
from torch import nn  # noqa: E402


def with_loss(network):
    """A module as pfl takes it."""

    def loss(x, y):
        device = next(network.parameters()).device  # pfl takes a GPU if there is one
        return nn.functional.cross_entropy(network.train()(x.to(device)), y.to(device))

    def metrics(x, y):
        return {"loss": Weighted(loss(x, y).item() * len(y), len(y))}

    network.loss, network.metrics = loss, metrics
    return network


class Gated(TrainingProcessCallback):
    """Rounds end at the gate of the first process; the others hear what it said."""

    def __init__(self, gate):
        self.gate = gate

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # noqa: ARG002
        if PROCESSES == 1:
            return not self.gate(), Metrics()
        first = os.environ["PFL_WORKER_RANK"] == "0"
        go_on = torch.tensor(int(self.gate()) if first else 0)
        torch.distributed.broadcast(go_on, 0)
        return not go_on, Metrics()


def main():
    _, task, gate = child(__doc__)
    np.random.seed(SEED)  # noqa: NPY002 - where pfl takes its seeds from
    x, y = task.data()
    network = with_loss(task.model())
    model = PyTorchModel(
        network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    users = FederatedDataset(
        lambda user: PyTorchTensorDataset((x[user], y[user]), user_id=str(user)),
        get_user_sampler("minimize_reuse", list(range(task.clients))),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=FOREVER,
            evaluation_frequency=FOREVER,
            train_cohort_size=task.cohort,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LEARNING_RATE, local_batch_size=BATCH
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Gated(gate)],
        send_metrics_to_platform=False,
    )
    gate.tell(loss=loss_of(network.cpu(), task), version=importlib.metadata.version("pfl"))


if __name__ == "__main__":
    main()
