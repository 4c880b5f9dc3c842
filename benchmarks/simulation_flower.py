"""Flower's simulation engine on one of simulation.py's tasks: run by it, with a Python that has it.

Two Ray actors of one CPU each where the machine has two. The clients' training is that of the naive
loop without a DataLoader, so what differs is the engine.
"""

import contextlib
import importlib.metadata
import os

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from simulation_flower_client import app
from simulation_tasks import DEVICE, FOREVER, child, loss_of

os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")


class Ended(Exception):  # noqa: N818
    """The gate said so."""


class Gated(FedAvg):
    """FedAvg whose rounds end at the gate."""

    def __init__(self, gate, **settings):
        super().__init__(**settings)
        self.gate = gate
        self.arrays = None

    def aggregate_train(self, server_round, replies):
        self.arrays, metrics = super().aggregate_train(server_round, replies)
        if not self.gate():
            raise Ended
        return self.arrays, metrics


def main():
    arguments, task, gate = child(__doc__)
    strategy = Gated(
        gate,
        fraction_train=task.cohort / task.clients,
        fraction_evaluate=0.0,
        min_train_nodes=task.cohort,
        min_available_nodes=task.clients,
    )
    server = ServerApp()

    @server.main()
    def serve(grid, context):  # noqa: ARG001
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(task.model().state_dict()),
            num_rounds=FOREVER,
            train_config=ConfigRecord({"task": arguments.task}),
        )

    with contextlib.suppress(Ended):
        run_simulation(
            server,
            app,
            num_supernodes=task.clients,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.5 * (DEVICE != "cpu")}
            },
        )
    model = task.network()
    if task.trains:
        model.load_state_dict(strategy.arrays.to_torch_state_dict())
    flower, ray = (importlib.metadata.version(name) for name in ("flwr", "ray"))
    gate.tell(loss=loss_of(model, task), version=f"{flower} (Ray {ray})")


if __name__ == "__main__":
    main()
