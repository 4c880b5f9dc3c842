"""Flower's strategies on this server, and this server's strategies in a `ServerApp` of Flower.

    # server.toml: the operator names the code that runs in the server
    [flower]
    krum = "our_strategies:krum"

    # run.toml
    [strategy]
    name = "flower:krum"

and, in a `ServerApp`,

    from fedloom.server.flower import FlowerStrategy
    from fedloom.strategies import FedAdam

    FlowerStrategy(FedAdam(server_learning_rate=0.03)).start(grid=grid, initial_arrays=...)

docs/flower.md says what works and what is kept. Importing this needs no flwr; either use does.
"""

from fedloom.strategies.lazy_imports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
