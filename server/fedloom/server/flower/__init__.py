"""Flower's strategies on this server, and this server's strategies in a `ServerApp` of Flower.

    # server.toml: the operator names code that runs in the server
    [flower]
    krum = "our_strategies:krum"

    # run.toml
    [strategy]
    name = "flower:krum"

and, in a `ServerApp`,

    from fedloom.server.flower import FlowerStrategy
    from fedloom.strategies import FedAdam

    FlowerStrategy(FedAdam(server_learning_rate=0.03)).start(grid=grid, initial_arrays=...)

docs/flower.md lists what is supported. Importing this needs no flwr; both uses need it.
"""

from fedloom.strategies.lazy_imports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
