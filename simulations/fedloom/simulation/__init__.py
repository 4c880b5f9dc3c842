"""Thousands of clients on one machine, with the server's own rounds.

    from fedloom.simulation import config, simulate
    result = simulate(config.load("digits.toml"))

What a module here needs is loaded when it is asked for: a device's program that reads its shard by
`fedloom.simulation.sources.shards` does not load PyTorch for it.
"""

from fedloom.strategies.lazy_imports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
