"""Parallel search over any setting of an experiment, with Optuna beneath.

From Python: `run(read("sweep.toml"), Path("out"), jobs=4).best.settings`.

Names are imported when they are asked for: each trial's process loads this package too, and needs
none of them.
"""

from fedloom.strategies.lazy_imports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
