"""The objective by trial, and the best so far; of several seeds their means, by setting."""

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedloom.simulation.output.figures import BLUE, GREY, INK, ORANGE
from fedloom.simulation.sweep import table
from fedloom.simulation.sweep.outcome import FINISHED, SweepResult, merged
from fedloom.simulation.sweep.pictures import frame
from fedloom.simulation.sweep.pictures.settings import LOST, mark_lost


def history_figure(outcome: SweepResult) -> Figure | None:
    """The objective by trial, and the best so far; None for fewer than two trials.

    Of several seeds it is their mean, at the trial of the first.
    """
    num = outcome.sweep.repeats
    every = sorted(merged(outcome.rows, num), key=lambda row: row.trial)
    rows, lost = frame.usable(every), frame.lost(every)
    if len(rows) < 2:
        return None
    figure, axes = frame.figure(f"{outcome.sweep.name}: objective by trial")
    finished = [row for row in rows if row.state == FINISHED]
    others = [row for row in rows if row.state != FINISHED]
    ends = [(r.value, r.deviation or 0.0) for r in finished if r.value is not None]
    axes.errorbar([r.trial for r in finished], [value for value, _ in ends],
                  [size for _, size in ends] if num > 1 else None, fmt="o", color=BLUE,
                  markersize=6, capsize=3, label="finished")  # fmt: skip
    if others:
        axes.plot([r.trial for r in others], frame.values(others), "x", color=GREY,
                  markersize=6, label="pruned, last value")  # fmt: skip
    mark_lost(axes, outcome, [float(row.trial) for row in lost], LOST)
    if finished:
        better = max if outcome.sweep.objective.direction == "maximize" else min
        bests = [better(frame.values(finished[: i + 1])) for i in range(len(finished))]
        end = max(row.trial for row in every)
        axes.step([*(r.trial for r in finished), end], [*bests, bests[-1]], where="post",
                  color=ORANGE, linewidth=2.2, label="best so far")  # fmt: skip
    shown = [end for row in rows for end in frame.ends(outcome, row)]
    frame.y_axis(axes, shown, frame.unit(outcome))
    axes.set_xlabel("trial of the first seed" if num > 1 else "trial", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]))
    frame.legend(axes, table.deviation_note(num))
    return figure
