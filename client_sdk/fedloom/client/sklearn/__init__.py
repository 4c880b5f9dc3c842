"""Clients that train scikit-learn's linear models.

    from sklearn.linear_model import SGDClassifier

    from fedloom.client import run
    from fedloom.client.sklearn import sklearn_client

    client = sklearn_client(SGDClassifier(loss="log_loss"), (x, y), classes=range(10))
    run(client, config="client.toml")

`fedloom model init my_client.py:client` writes the model that a run begins with, and `load` puts
an exported one into an estimator, to predict with. Importing this imports scikit-learn; importing
`fedloom.client` does not.
"""

from fedloom.client.sklearn.client import LinearClient, sklearn_client
from fedloom.client.sklearn.linear import initial, load

__all__ = ["LinearClient", "initial", "load", "sklearn_client"]
