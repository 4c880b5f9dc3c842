"""Adds a step that depends on the node and the round, so that sums tell which updates count.

`slow` of the run is the seconds that each training takes. A node with `broken` answers with wrong
shapes.
"""

import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
initial = {"w": np.zeros((2, 3)), "b": np.zeros(3)}


def step(number, round_number):
    """What a node adds in a round: a multiple of 1/4, exact in binary."""
    return (number + 1) * round_number / 4


def num_examples(number):
    """1, 1, 2, 4: four nodes have 8, so that means are exact too."""
    return max(1, 2 ** (number - 1)) if number else 1


@app.train()
def train(msg: Message, context: Context):
    number = context.node_config["partition-id"]
    time.sleep(float(context.run_config["slow"]))
    added = step(number, msg.content["config"]["server-round"])
    model = {name: array.numpy() + added for name, array in msg.content["arrays"].items()}
    if context.node_config.get("broken"):
        model["w"] = model["w"].T
    arrays = ArrayRecord({name: Array(np.ascontiguousarray(v)) for name, v in model.items()})
    metrics = MetricRecord({"node": number, "num-examples": num_examples(number)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    value = float(msg.content["arrays"]["b"].numpy()[0])
    metrics = MetricRecord({"b": value, "num-examples": 1})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
