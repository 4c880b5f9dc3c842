"""Seeds of a ServerApp and of each message to a ClientApp.

A message's seed follows from the node's partition, the message's type and the numbers and texts of
its config, so it does not depend on which process trains, or in which order.
"""

import functools
import json
import os
import random
import sys
from hashlib import sha256

LIBRARIES = []
"""Keeps torch's declarations alive."""


def seed(*parts):
    number = int.from_bytes(sha256(json.dumps(parts).encode()).digest()[:4], "little")
    random.seed(number)
    numpy = __import__("numpy")
    numpy.random.seed(number)
    loaded = sys.modules
    if "torch" in loaded:
        loaded["torch"].manual_seed(number)
    if "keras" in loaded:
        loaded["keras"].utils.set_random_seed(number)
    if "monai.utils" in loaded:
        loaded["monai.utils"].set_determinism(number)  # its transforms have generators of their own
    if "mlx.core" in loaded:
        loaded["mlx.core"].random.seed(number)


def torch(module):
    module.set_num_threads(1)
    # torchvision's wheel is built for a torch with CUDA. Beside one without, its compiled operators
    # do not load, yet it completes the declarations of two. No example uses them.
    if module.version.cuda is None:
        library = module.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        LIBRARIES.append(library)


def client_app(module):
    call = module.ClientApp.__call__

    @functools.wraps(call)
    def seeded(self, message, context):
        values = sorted(
            (name, key, value)
            for name, record in message.content.config_records.items()
            for key, value in record.items()
            if isinstance(value, bool | int | float | str)
        )
        seed(partition_of(context), message.metadata.message_type, values)
        return call(self, message, context)

    module.ClientApp.__call__ = seeded


def partition_of(context):
    """The index of a node, from its id: not every example has partitions in its config."""
    return nodes().index(context.node_id)


def nodes():
    """The ids of all nodes, in the order of their partitions."""
    return json.loads(os.environ["FLOWER_EXAMPLE"])["node_ids"]
