"""Counts, trains and evaluates on numbers that follow from the partition."""

import os
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def _data(context):
    generator = np.random.default_rng(int(context.node_config["partition-id"]))
    return generator.normal(size=(20, 3))


@app.query("histogram")
def histogram(message, context):
    """Counts in the bins that the message names for this node; text and bytes beside them."""
    bins = message.content["bins"].values()
    edges = np.asarray(next(iter(bins)))
    counts, _ = np.histogram(_data(context)[:, 0], edges)
    reply = {
        "counts": ArrayRecord({"of": Array(counts)}),
        "about": ConfigRecord({"text": "one", "raw": b"\0\xff", "flags": [True, False]}),
    }
    return Message(RecordDict(reply), reply_to=message)


@app.train()
def train(message, context):
    """Steps towards the mean; counts its own calls in the context, and in a file."""
    config, received = message.content["config"], message.content["arrays"]["w"].numpy()
    calls = context.state.get("calls", MetricRecord({"n": 0}))
    calls["n"] += 1
    context.state["calls"] = calls
    if "TRAINED" in os.environ:
        with Path(os.environ["TRAINED"]).open("a") as file:
            file.write(f"{context.node_config['partition-id']} {config['server-round']}\n")
    mean = _data(context).mean(axis=0)
    moved = received + 0.5 * (mean - received)
    metrics = {"num-examples": 20, "calls": calls["n"], "distance": float(np.abs(moved).sum())}
    content = {"arrays": ArrayRecord({"w": Array(moved)}), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    """The distance of the model to this node's mean."""
    received = message.content["arrays"]["w"].numpy()
    far = float(np.square(received - _data(context).mean(axis=0)).sum())
    metrics = MetricRecord({"num-examples": 20, "far": far})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@app.query("fail")
def fail(message, context):
    """Fails on the node of partition 1."""
    if context.node_config["partition-id"] == 1:
        raise ValueError("no such column")
    return Message(RecordDict({"ok": ConfigRecord({"ok": True})}), reply_to=message)
