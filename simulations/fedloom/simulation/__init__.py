"""Simulation of federated training: thousands of clients on one machine, with the server's rounds.

    from fedloom.simulation import config, simulate

    experiment = config.load("digits.toml")
    result = simulate(experiment, out="out/digits")
    print(result.best("accuracy"))

An experiment made in Python:

    from fedloom.simulation import Experiment, models, run_spec, simulate, sources

    experiment = Experiment(
        population=sources.load(source="digits", clients=20, seed=0),
        model=lambda: models.build("digits-cnn", input_shape=(1, 8, 8), num_classes=10),
        spec=run_spec(Path("run.toml").read_text()),
    )

A module is loaded when one of its names is first used.
"""

from fedloom.strategies.lazy_imports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
