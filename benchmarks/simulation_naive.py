"""The loop that a newcomer writes: a copy of the model for each client, then the average.

Run by simulation.py. With --loader yes, batches come from a DataLoader, as in most tutorials.
"""

import copy

import numpy as np
import torch
from simulation_tasks import BATCH, DEVICE, LEARNING_RATE, SEED, child, fit, loss_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def fit_loader(model, x, y):
    """One epoch with a DataLoader."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for batch, target in DataLoader(
        TensorDataset(x.to(DEVICE), y.to(DEVICE)), batch_size=BATCH, shuffle=True
    ):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), target).backward()
        optimizer.step()


def main():
    arguments, task, gate = child(__doc__, "--loader")
    train = fit_loader if arguments.loader else fit
    x, y = task.data()
    model = task.model().to(DEVICE)
    generator = np.random.default_rng(SEED)
    while True:
        sums = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
        cohort = generator.choice(task.clients, task.cohort, replace=False)
        for client in cohort:
            local = copy.deepcopy(model)
            if task.trains:
                train(local, x[client], y[client])
            for name, tensor in local.state_dict().items():
                sums[name] += tensor.to(sums[name].device)
        model.load_state_dict({name: total / len(cohort) for name, total in sums.items()})
        if not gate():
            break
    gate.tell(loss=loss_of(model.cpu(), task))


if __name__ == "__main__":
    main()
