"""The examples of a device: one small interface for all storage and all clients.

    from fedloom.client.data import from_csv

    shard = from_csv("visits/", label="outcome", classes=["home", "ward"])
    train, held_out = shard.split(0.2)

A `Shard` has a length and returns examples by index; clients of numpy, scikit-learn and PyTorch
accept one as their data. `ExampleStore` stores examples that arrive over time. This package imports
no large library except numpy.
"""

from fedloom.client.data.columns import from_table
from fedloom.client.data.database import from_sqlite
from fedloom.client.data.files import from_npy, from_npz
from fedloom.client.data.shard import Arrays, Batch, Items, Shard, Subset, as_shard
from fedloom.client.data.store import ExampleStore, Growing
from fedloom.client.data.tables import from_csv, from_parquet

__all__ = [
    "Arrays",
    "Batch",
    "ExampleStore",
    "Growing",
    "Items",
    "Shard",
    "Subset",
    "as_shard",
    "from_csv",
    "from_npy",
    "from_npz",
    "from_parquet",
    "from_sqlite",
    "from_table",
]
