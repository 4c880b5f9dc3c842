"""Clients that train scikit-learn's linear models.

    from sklearn.linear_model import SGDClassifier

    from fedloom.client import run
    from fedloom.client.sklearn import sklearn_client

    client = sklearn_client(SGDClassifier(loss="log_loss"), (x, y), classes=range(10))
    run(client, config="client.toml")

`fedloom model init my_client.py:client` writes the initial model of a run. `load` puts an exported
model into an estimator. Importing this imports scikit-learn; importing `fedloom.client` does not.
"""

from fedloom.client.sklearn.client import LinearClient, sklearn_client
from fedloom.client.sklearn.linear import initial, load

__all__ = ["LinearClient", "initial", "load", "sklearn_client"]
