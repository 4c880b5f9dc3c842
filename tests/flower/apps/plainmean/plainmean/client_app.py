"""Adds a step that depends on the node and the round, so that each update can be told by its sum.

`slow` seconds pass in each training. A node with `broken` answers with wrong shapes.
"""

import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
initial = {"w": np.zeros((2, 3)), "b": np.zeros(3)}


def step(number: int, round_number: int) -> float:
    """What node `number` adds in a round: a multiple of 1/4, exact in binary."""
    return (number + 1) * round_number / 4


@app.train()
def train(msg: Message, context: Context):
    number = context.node_config["partition-id"]
    time.sleep(float(context.run_config.get("slow", 0.0)))
    added = step(number, msg.content["config"]["server-round"])
    model = {name: array.numpy() + added for name, array in msg.content["arrays"].items()}
    if context.node_config.get("broken"):
        model["w"] = model["w"].T
    metrics = MetricRecord({"node": number, "num-examples": number + 1})
    arrays = ArrayRecord({name: Array(np.ascontiguousarray(v)) for name, v in model.items()})
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    return Message(content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    values = msg.content["arrays"]["b"].numpy()
    metrics = MetricRecord({"b": float(values[0]), "num-examples": 1})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
