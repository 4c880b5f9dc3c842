"""The message API with scikit-learn: lists of arrays without names, a warm-started model."""

import warnings

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

app = ClientApp()


def initial():
    return [np.zeros((10, 64)), np.zeros(10)]


def _load(context):
    x, y = load_digits(return_X_y=True)
    number, of = context.node_config["partition-id"], context.node_config["num-partitions"]
    rows = np.random.default_rng(42).permutation(len(y))[number::of]
    cut = int(0.8 * len(rows))
    return x[rows[:cut]] / 16, y[rows[:cut]], x[rows[cut:]] / 16, y[rows[cut:]]


def _model(msg, context):
    model = LogisticRegression(
        C=context.run_config["fit.c"], max_iter=context.run_config["local-epochs"], warm_start=True
    )
    model.classes_ = np.arange(10)
    model.coef_, model.intercept_ = msg.content["arrays"].to_numpy_ndarrays()
    return model


@app.train()
def train(msg: Message, context: Context):
    model, (x, y, _, _) = _model(msg, context), _load(context)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y)
    metrics = {"num-examples": len(x), "train_logloss": log_loss(y, model.predict_proba(x))}
    arrays = ArrayRecord([model.coef_, model.intercept_])
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model, (_, _, x, y) = _model(msg, context), _load(context)
    metrics = {
        "num-examples": len(x),
        "test_logloss": log_loss(y, model.predict_proba(x), labels=np.arange(10)),
        "accuracy": model.score(x, y),
    }
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
