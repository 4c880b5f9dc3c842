"""The live display of a run, drawn for a terminal from a status as of `fedloom run status --json`.

Pure. It reads only fields of the HTTP API's RunDetail (fedloom.server.queries.views).

Legend: a curve's point (n, loss, accuracy) belongs to the model after n training rounds. Clients
evaluate it at the start of the next round.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedloom.simulation.output import words
from fedloom.simulation.output.panel import sparkline

_WIDTH, _BAR_WIDTH = 78, 44
PHASES = {
    "offered": ("…", "yellow"),
    "training": ("▶", "cyan"),
    "reported": ("✔", "green"),
    "declined": ("–", "yellow"),
    "failed": ("✘", "red"),
    "refused": ("✘", "red"),
    "lost": ("?", "red"),
}
_STATES = {"finished": "green", "stopped": "yellow", "failed": "red", "paused": "yellow"}


class EvaluationPoint(NamedTuple):
    """The quality of the model after some rounds.

    Attributes:
        rounds: training rounds before it.
        loss: mean over all clients' examples; None if not measured or not finite.
        accuracy: likewise.
    """

    rounds: int
    loss: float | None
    accuracy: float | None


def curve(status: Mapping[str, Any]) -> list[EvaluationPoint]:
    """The evaluations of a run's models, oldest first.

    Args:
        status: a RunDetail.
    """
    points: dict[int, EvaluationPoint] = {}
    trained = 0
    for row in status["rounds"]:
        if values := (row["evaluation"] or {}).get("values"):
            points[trained] = EvaluationPoint(
                trained, _finite(values, "loss"), _finite(values, "accuracy")
            )
        trained += row["kind"] == "train" and row["state"] == "committed"
    return [points[rounds] for rounds in sorted(points)]


def render(status: Mapping[str, Any], *, elapsed_s: float) -> RenderableType:
    """Draw the state of a run.

    Args:
        status: a RunDetail.
        elapsed_s: since the run was submitted.
    """
    color = _STATES.get(status["state"], "cyan")
    body = [_progress(status)]
    if status["live"] is not None:
        body += [Text(), _round(status["live"])]
    if status["reason"]:
        body += [Text(), Text(status["reason"], style=color)]
    return Panel(
        Group(*body),
        title=Text(f" {status['name']} ", style="bold"),
        subtitle=Text.assemble((f" {status['state']}", color), f" · {words.duration(elapsed_s)} "),
        border_style=color,
        padding=(1, 2),
        width=_WIDTH,
    )


def _finite(values: Mapping[str, float], name: str) -> float | None:
    """A metric; None if it is missing or not finite."""
    value = values.get(name)
    return value if value is not None and math.isfinite(value) else None


def _progress(status: Mapping[str, Any]) -> RenderableType:
    done, total = status["rounds_committed"], status["rounds_total"]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=8, style="dim")
    grid.add_column(width=_BAR_WIDTH)
    grid.add_column(justify="right", style="bold")
    bar = ProgressBar(
        max(total, 1), done, width=_BAR_WIDTH, complete_style="cyan", finished_style="green"
    )
    grid.add_row("rounds", bar, f"{done} of {total}")
    points = curve(status)
    measured = {
        name for row in status["rounds"] for name in (row["evaluation"] or {}).get("values", ())
    }
    accuracies = [point.accuracy for point in points if point.accuracy is not None]
    losses = [point.loss for point in points if point.loss is not None]
    for name, values, style in (("accuracy", accuracies, "green"), ("loss", losses, "yellow")):
        if measured and name not in measured:
            continue  # such as the accuracy of a predicted number
        bars = Text(sparkline(values, _BAR_WIDTH), style=style)
        grid.add_row(name, bars, words.metric(name, values[-1] if values else None))
    return grid


def _round(live: Mapping[str, Any]) -> RenderableType:
    if not (round_ := live.get("round")):
        return Text(f"{live['clients_available']} clients available", style="dim")
    phases: Mapping[str, str] = round_["members"]
    left = round_["deadline_left_s"]
    head = Text.assemble(
        ("round ", "dim"),
        (f"{round_['number']}", "bold"),
        f" · {round_['kind']} · {'paused' if round_['paused'] else round_['state']} · ",
        (f"{Counter(phases.values())['reported']} of {round_['goal']} reported", "bold"),
        (f" · {words.duration(left)} left" if left is not None else "", "dim"),
    )
    members = [_member(name, phases[name]) for name in sorted(phases, key=_natural)]
    return Group(head, Columns(members, padding=(0, 1)), _tally(phases))


def _member(name: str, phase: str) -> Text:
    mark, color = PHASES.get(phase, ("·", "white"))
    return Text(f"{mark} {name}", style=color)


def _tally(phases: Mapping[str, str]) -> Text:
    counts = Counter(phases.values())
    known = [phase for phase in PHASES if counts[phase]]
    parts = (Text(f"{counts[phase]} {phase}", style=PHASES[phase][1]) for phase in known)
    return Text(" · ", style="dim").join(parts)


def _natural(name: str) -> tuple[str, int]:
    """A key that sorts site-2 before site-10."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)
