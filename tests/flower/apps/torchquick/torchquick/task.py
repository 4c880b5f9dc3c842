"""Model and data: a small network on scikit-learn's digits, without a download."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """With a normalisation, whose buffers are tensors of another type."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.norm = nn.BatchNorm1d(32)
        self.out = nn.Linear(32, 10)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.hidden(x))))


def initial():
    torch.manual_seed(0)
    return Net()


def load_data(partition_id, num_partitions, batch_size):
    """A partition: 80 % to train on, 20 % to test on."""
    x, y = load_digits(return_X_y=True)
    rows = np.random.default_rng(42).permutation(len(y))[partition_id::num_partitions]
    cut = int(0.8 * len(rows))
    train, test = (
        TensorDataset(torch.tensor(x[r] / 16, dtype=torch.float32), torch.tensor(y[r]))
        for r in (rows[:cut], rows[cut:])
    )
    return DataLoader(train, batch_size=batch_size), DataLoader(test, batch_size=batch_size)


def train(net, loader, epochs, lr):
    torch.set_num_threads(1)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


def test(net, loader):
    net.eval()
    correct, total = 0, 0.0
    with torch.no_grad():
        for images, labels in loader:
            outputs = net(images)
            total += nn.functional.cross_entropy(outputs, labels, reduction="sum").item()
            correct += (outputs.argmax(1) == labels).sum().item()
    return total / len(loader.dataset), correct / len(loader.dataset)
