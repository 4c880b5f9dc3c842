"""The message API in numpy: metrics that are lists, a context with state, and a query."""

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def initial():
    return [np.ones((1, 1)), *(np.zeros(2) for _ in range(11))]


@app.train()
def train(msg: Message, context: Context):
    seen = context.state.get("seen", ConfigRecord({"rounds": 0}))["rounds"] + 1
    context.state["seen"] = ConfigRecord({"rounds": seen})
    step = 1.0 + context.node_config["partition-id"]
    model = [
        m + step * (place + 1) for place, m in enumerate(msg.content["arrays"].to_numpy_ndarrays())
    ]
    metrics = MetricRecord({"rounds": seen, "listed": [1.0, 2.0], "num-examples": 1})
    content = RecordDict({"arrays": ArrayRecord(model), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    metrics = {"listed": [1.0, 2.0, 4.0], "num-examples": 1}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)


@app.query()
def query(msg: Message, context: Context):
    metrics = {"examples-here": 7 + context.node_config["partition-id"], "num-examples": 1}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
