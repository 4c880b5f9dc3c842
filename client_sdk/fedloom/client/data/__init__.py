"""A device's own examples, wherever they lie: one small interface for every helper.

    from fedloom.client.data import from_csv

    shard = from_csv("visits/", label="outcome", classes=["home", "ward"])
    train, held_out = shard.split(0.2)

A `Shard` has a length and gives the examples at some places; clients of numpy, scikit-learn and
PyTorch take one as their data. Importing this imports numpy and nothing else that is large.
"""

from fedloom.client.data.shard import Arrays, Batch, Items, Shard, Subset, as_shard

__all__ = ["Arrays", "Batch", "Items", "Shard", "Subset", "as_shard"]
