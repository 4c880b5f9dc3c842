"""Federated XGBoost by bagging: five sites grow trees on their own handwritten digits.

pip install 'fedloom[sim,xgboost]'
fedloom simulate simulations/examples/trees.py
"""

import numpy as np
from sklearn.datasets import load_digits

from fedloom.client.trees import TreeClient
from fedloom.simulation import Examples, Experiment, Population, run_spec
from fedloom.simulation.trees import TreeModel

SETTINGS = {"objective": "multi:softprob", "num_class": 10, "max_depth": 3}
CLIENTS = 5
ROUNDS = 12


def sites() -> Population:
    """500 digits over five sites, 50 to 200 each, and 1297 for testing."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order].astype(np.float32), y[order].astype(np.int64)
    return Population(
        examples=Examples(x=x[:500], y=y[:500]),
        names=[f"site-{n}" for n in range(CLIENTS)],
        shards=np.array_split(np.arange(500), [50, 120, 200, 300]),
        test=Examples(x=x[500:], y=y[500:]),
        num_classes=10,
    )


def experiment() -> Experiment:
    """Rounds in which each site grows a tree for each digit."""
    population = sites()
    shards = dict(zip(population.names, population.shards, strict=True))

    def client(name: str) -> TreeClient:
        mine = shards[name]
        return TreeClient(population.examples.x[mine], population.examples.y[mine], SETTINGS)

    return Experiment(
        population=population,
        model=lambda: TreeModel(population.names, ROUNDS, SETTINGS),
        client=client,
        spec=run_spec(
            {
                "name": "trees",
                "rounds": ROUNDS,
                "evaluate": False,
                "cohort": {"goal": CLIENTS},
                "train": {"steps": 1, "learning_rate": 0.3},
                "config": {"clients": ",".join(population.names)},
            }
        ),
    )
