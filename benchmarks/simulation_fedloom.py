"""fedloom.simulation on one of simulation.py's tasks: run by it, --kernel and --workers given."""

import numpy as np
import torch
from simulation_tasks import BATCH, DEVICE, FOREVER, LEARNING_RATE, SEED, child, loss_of

from fedloom.client import Client
from fedloom.protocol.version import __version__
from fedloom.simulation import EngineSettings, Examples, Experiment, Population, run_spec, simulate
from fedloom.simulation.data.population import numbered


class Idle(Client):
    """Returns what it gets."""

    def train(self, params, task):  # noqa: ARG002
        return params, 1, {}


def experiment_of(task, kernel, workers, precision="float32"):
    """The task for `simulate`."""
    x, y = task.data()
    shards = np.arange(task.clients * task.examples).reshape(task.clients, task.examples)
    return Experiment(
        population=Population(
            examples=Examples(x=x.numpy().reshape(-1, x.shape[2]), y=y.numpy().reshape(-1)),
            names=numbered(task.clients),
            shards=list(shards),
            num_classes=10,
        ),
        model=task.model,
        spec=run_spec(
            {
                "rounds": FOREVER,
                "seed": SEED,
                "evaluate": False,
                "cohort": {"goal": task.cohort},
                "train": {"epochs": 1, "batch_size": BATCH, "learning_rate": LEARNING_RATE},
            }
        ),
        client=None if task.trains else lambda name: Idle(),  # noqa: ARG005
        engine=EngineSettings(kernel=kernel, workers=workers, device=DEVICE, precision=precision),
        test_every=0,
    )


def main():
    arguments, task, gate = child(__doc__, "--kernel", "--workers", "--precision", "--save")
    workers = int(arguments.workers or 2)
    experiment = experiment_of(
        task, arguments.kernel or "auto", workers, arguments.precision or "float32"
    )

    def on_round(record, params):
        if arguments.save and record.round == 1:
            np.savez(arguments.save.replace(".npz", "-first.npz"), **params)
        return not gate()

    result = simulate(experiment, on_round=on_round, show=False)
    if arguments.save:
        np.savez(arguments.save, **result.params)
    model = task.model()
    model.load_state_dict({name: torch.tensor(value) for name, value in result.params.items()})
    gate.tell(loss=loss_of(model, task), version=__version__, engine=result.engine)


if __name__ == "__main__":
    main()
