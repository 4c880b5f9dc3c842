"""Draw all pictures of a sweep."""

from pathlib import Path

from fedloom.simulation.output import figures
from fedloom.simulation.sweep.outcome import SweepResult
from fedloom.simulation.sweep.pictures.curves import curves_figure
from fedloom.simulation.sweep.pictures.history import history_figure
from fedloom.simulation.sweep.pictures.parallel import parallel_figure
from fedloom.simulation.sweep.pictures.settings import settings_figure


def draw_all(outcome: SweepResult) -> list[Path]:
    """Draw the pictures that the rows have values for, and return their files.

    `curves.png` (by round), `curves-by-bytes.png`, `curves-by-virtual-time.png`, `settings.png`,
    `parallel.png` and `history.png`.
    """
    drawn = [
        ("curves", curves_figure(outcome, "trained")),
        ("curves-by-bytes", curves_figure(outcome, "bytes")),
        ("curves-by-virtual-time", curves_figure(outcome, "virtual_s")),
        ("settings", settings_figure(outcome)),
        ("parallel", parallel_figure(outcome)),
        ("history", history_figure(outcome)),
    ]
    return figures.save_all(outcome.folder, drawn)
