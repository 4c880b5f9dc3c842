"""What a Ray actor does for simulation_flower.py; a module of its own, so that actors import it."""

import functools

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from simulation_tasks import ALL_TASKS, fit

app = ClientApp()


@functools.cache
def data_of(name):
    """A task's data, once in each actor."""
    torch.set_num_threads(1)
    return ALL_TASKS[name].data()


@app.train()
def train(message, context):
    """What an actor does for one client."""
    name = message.content["config"]["task"]
    task = ALL_TASKS[name]
    if task.trains:
        x, y = data_of(name)
        client = context.node_config["partition-id"]
        model = task.network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        fit(model, x[client], y[client])
        arrays = ArrayRecord(model.cpu().state_dict())
    else:
        arrays = ArrayRecord(message.content["arrays"].to_numpy_ndarrays())
    metrics = MetricRecord({"num-examples": task.examples})
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    return Message(content=content, reply_to=message)
