"""The panel of a running simulation.

Pure: it maps a state to a rich renderable; `progress` refreshes it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedloom.simulation.output import curves, words
from fedloom.simulation.output.history import RoundRecord

_BARS = "▁▂▃▄▅▆▇█"
_WIDEST = 88
_NAME_WIDTH = 9
_VALUE_WIDTH = 15


@dataclass(slots=True)
class Tally:
    """The values of past rounds that the panel needs.

    Attributes:
        values: by source and metric, each measured value in order.
        last: the latest round.
        clients: accepted updates.
        abandoned: rounds abandoned.
        round_s: seconds of all rounds.
    """

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    last: RoundRecord | None = None
    clients: int = 0
    abandoned: int = 0
    round_s: float = 0.0

    def add(self, record: RoundRecord) -> None:
        """Count a round that has ended."""
        self.last = record
        self.clients += record.accepted
        self.abandoned += record.state == "abandoned"
        self.round_s += record.round_wall_s
        for source in curves.SOURCES:
            known = self.values.setdefault(source, {})
            for name, value in curves.values_of(record, source).items():
                known.setdefault(name, []).append(value)

    def shown(self) -> list[tuple[str, list[float]]]:
        """The curves of the panel: the main metric, and the loss."""
        main = curves.main_of(self.values)
        if main is None:
            return []
        loss = next((s for s in curves.SOURCES if "loss" in self.values.get(s, {})), None)
        pairs = [main] if main[1] == "loss" or loss is None else [main, (loss, "loss")]
        return [(name, self.values[source][name]) for source, name in pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelState:
    """The state of a running simulation.

    Attributes:
        name: of the experiment.
        engine: kernel and workers; may be empty.
        total: training rounds to commit.
        tally: of the rounds so far.
        working: clients of the open round trained so far, and to train in all.
        elapsed_s: wall time since this process began.
        left_s: estimated wall time until the end, from recent rounds; None before the first.
        ended: whether the simulation has ended.
    """

    name: str
    engine: str
    total: int
    tally: Tally
    working: tuple[int, int]
    elapsed_s: float
    left_s: float | None
    ended: bool

    @property
    def trained(self) -> int:
        """Training rounds committed."""
        return self.tally.last.trained if self.tally.last else 0


def render(state: PanelState, width: int) -> RenderableType:
    """Draw a state.

    Args:
        state: to draw.
        width: of the terminal, in columns.
    """
    width = min(width, _WIDEST)
    inner = max(width - 6, 20)
    last = state.tally.last
    body: list[RenderableType] = [_rows(state, inner), _facts(state, inner - _NAME_WIDTH - 1)]
    if last and last.state == "abandoned":
        text = f"round {last.round} abandoned{f': {last.reason}' if last.reason else ''}"
        body.append(Text(text, style="yellow", no_wrap=True, overflow="ellipsis"))
    color = "cyan" if not state.ended else "green" if state.trained >= state.total else "yellow"
    return Panel(
        Group(*body),
        title=Text.assemble(" ", (words.shortened(state.name or "simulation", 40), "bold"), " "),
        subtitle=Text(f" {words.shortened(state.engine, inner - 4)} ", "dim")
        if state.engine
        else None,
        border_style=color,
        padding=(0, 2),
        width=width,
    )


def line(record: RoundRecord, total: int, left_s: float | None) -> str:
    """A round as one line of a log."""
    if record.state == "abandoned":
        reason = f": {record.reason}" if record.reason else ""
        return f"round {record.round} abandoned{reason}"
    parts = [f"round {record.trained}/{total}"]
    if record.kind != "train":
        parts[0] += f" · {record.kind}"
    source = next((s for s in curves.SOURCES if getattr(record, s)), None)
    if source:
        where = "" if source == "test" else f" ({curves.SOURCES[source]})"
        metrics = curves.values_of(record, source).items()
        told = [f"{name} {words.metric(name, value)}" for name, value in sorted(metrics)]
        parts.append(", ".join(told) + where)
    parts.append(f"{record.accepted}/{record.cohort} clients, {words.rate(record.clients_per_s)}/s")
    if record.virtual_s is not None:
        parts.append(f"virtual {words.duration(record.virtual_s)}")
    if left_s is not None and record.trained < total:
        parts.append(f"{words.duration(left_s)} left")
    if record.reason:
        parts.append(record.reason)
    return " · ".join(parts)


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve as a line of bars between its own lowest and highest value.

    >>> sparkline([0.0, 0.5, 1.0], 3)
    '▁▅█'

    Args:
        values: oldest first; values that are not finite are shown as ×.
        width: bars at most; a bar of a longer history is a mean.
    """
    columns = min(len(values), width)
    means = []
    for column in range(columns):
        start, stop = column * len(values) // columns, (column + 1) * len(values) // columns
        finite = [value for value in values[start:stop] if math.isfinite(value)]
        means.append(sum(finite) / len(finite) if finite else math.nan)
    finite = [mean for mean in means if math.isfinite(mean)]
    low = min(finite, default=0.0)
    spread = max(finite, default=0.0) - low
    # NaN stays NaN in the sum; a constant curve is at half height.
    return "".join(_bar((mean - low) / spread if spread else mean - mean + 0.5) for mean in means)


def _bar(height: float) -> str:
    return _BARS[min(int(height * len(_BARS)), len(_BARS) - 1)] if math.isfinite(height) else "×"


def _rows(state: PanelState, width: int) -> Table:
    middle = max(width - _NAME_WIDTH - _VALUE_WIDTH - 2, 4)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=_NAME_WIDTH, style="dim", no_wrap=True, overflow="ellipsis")
    grid.add_column(width=middle)
    grid.add_column(width=_VALUE_WIDTH, justify="right", style="bold", no_wrap=True)
    done, of = state.working
    within = done / of if of else 0.0
    bar = ProgressBar(
        max(state.total, 1),
        min(state.trained + within, state.total),
        width=middle,
        complete_style="cyan",
        finished_style="green",
    )
    grid.add_row("rounds", bar, f"{state.trained:,} of {state.total:,}")
    for name, values in state.tally.shown():
        style = "green" if words.is_share(name) else "yellow"
        bars = Text(sparkline(values, middle), style=style)
        grid.add_row(Text(name), bars, words.metric(name, values[-1]))
    return grid


def _facts(state: PanelState, width: int) -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(width=_NAME_WIDTH, style="dim", no_wrap=True)
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    tally = state.tally
    speed: list[tuple[str, str]] = []
    if tally.round_s > 0:
        speed.append((f"{words.rate(tally.clients / tally.round_s)} clients/s", "bold"))
    if state.working[1]:
        speed.append((f"client {state.working[0]:,} of {state.working[1]:,}", ""))
    if tally.abandoned:
        speed.append((f"{words.things(tally.abandoned, 'round')} abandoned", "yellow"))
    if speed:
        grid.add_row("speed", _joined(speed))
    times = [(words.duration(state.elapsed_s), "")]
    if state.left_s is not None and not state.ended:
        times.append((f"{words.duration(state.left_s)} left", "bold"))
    if tally.last and tally.last.virtual_s is not None:
        times.append((f"virtual time {words.duration(tally.last.virtual_s)}", ""))
    grid.add_row("time", _joined(times))
    if tally.last and len(tally.last.shares) > 1:
        grid.add_row("workers", _balance(tally.last, width))
    return grid


def _joined(parts: list[tuple[str, str]]) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for place, (part, style) in enumerate(parts):
        text.append(" · " if place else "", "dim").append(part, style)
    return text


def _balance(record: RoundRecord, width: int) -> Text:
    """The workers' busy times in the last round as bars, and their balance."""
    times = [share.busy_s for share in record.shares]
    longest = max(times) or 1.0
    shown = times[: max(width - 16, 8)]
    bars = "".join(_bar(busy / longest * 0.999) for busy in shown)
    more = "…" if len(shown) < len(times) else ""
    even = curves.balance(record)
    told = f"  {words.share(even)} balanced" if even is not None else ""
    return Text.assemble((bars + more, "cyan"), told, no_wrap=True)
