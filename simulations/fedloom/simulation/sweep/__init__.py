"""Parallel search over any setting of an experiment, based on Optuna.

From Python: `run(read("sweep.toml"), Path("out"), jobs=4).best.settings`.

Names are imported at first use: each trial's process imports this package too, and needs none.
"""

from fedloom.strategies.lazy_imports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
