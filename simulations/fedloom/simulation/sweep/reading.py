"""Read a sweep file of either format."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fedloom.simulation.sweep import comet, settings
from fedloom.simulation.sweep.settings import Sweep


def read(
    path: Path | str,
    *,
    experiment: str | None = None,
    names: Mapping[str, str] | None = None,
    trials: int | None = None,
    seeds: int | None = None,
) -> Sweep:
    """Read a sweep file (TOML) or a Comet Optimizer config (JSON or a Python literal).

    Args:
        path: `.toml` is a sweep file; any other name is Comet's.
        experiment: replaces the experiment's file in the sweep.
        names: for Comet's: parameter → setting.
        trials: replaces the number of settings in the file.
        seeds: replaces the number of simulations of the same settings.

    Raises:
        UsageError: the file is invalid.
    """
    path = Path(path)
    if path.suffix.lower() != ".toml":
        sweep = comet.read(path, experiment=experiment, names=names, trials=trials)
    else:
        sweep = settings.read(path, experiment=experiment)
        if trials is not None and sweep.algorithm != "grid":
            sweep = replace(sweep, trials=trials)
    return sweep if seeds is None else replace(sweep, repeats=seeds)
