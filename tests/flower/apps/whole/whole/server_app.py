"""Asks each node for a histogram of its own bins, lets one node fail, then trains by FedAdam."""

import json
import random
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAdam

app = ServerApp()


@app.main()
def main(grid, context):
    """Write what was found to `result.json`."""
    while len(nodes := sorted(grid.get_node_ids())) < 2:
        time.sleep(0.05)
    result = {"draw": random.random(), "counts": []}
    asked = [
        Message(
            RecordDict({"bins": ConfigRecord({"edges": list(np.linspace(-2 - place, 2, 5))})}),
            dst_node_id=node,
            message_type="query.histogram",
            group_id="1",
        )
        for place, node in enumerate(nodes)
    ]
    for reply in grid.send_and_receive(asked):
        about = reply.content["about"]
        assert (about["text"], about["raw"], about["flags"]) == ("one", b"\0\xff", [True, False])
        result["counts"].append(reply.content["counts"]["of"].numpy().tolist())
    empty = RecordDict({"ask": ConfigRecord({})})
    asked = [Message(empty, dst_node_id=node, message_type="query.fail") for node in nodes]
    replies = grid.send_and_receive(asked)
    result["failed"] = ["no such column" in r.error.reason for r in replies if r.has_error()]
    strategy = FedAdam(eta=context.run_config["server.eta"], weighted_by_key="num-examples")
    done = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({"w": Array(np.zeros(3))}),
        num_rounds=context.run_config["num-rounds"],
    )
    result["model"] = done.arrays["w"].numpy().tolist()
    result["train"] = {n: dict(m) for n, m in done.train_metrics_clientapp.items()}
    result["evaluate"] = {n: dict(m) for n, m in done.evaluate_metrics_clientapp.items()}
    Path("result.json").write_text(json.dumps(result))
