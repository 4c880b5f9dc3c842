"""The summary at the end of a simulation: quality, time, folder, how to load the model."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedloom.simulation.output import curves, words
from fedloom.simulation.output.history import INTERRUPTED, Result


def summary(result: Result) -> RenderableType:
    """The most important results, for a terminal or a log.

    Args:
        result: of the simulation, which may have no rounds.
    """
    records, sums = result.records, curves.totals(result.records)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    if main := curves.main_metric(records):
        table.add_row(Text(main[1]), _metric(result, *main))
    if line := best_line(result):
        table.add_row("best model", Text(line))
    table.add_row("rounds", _rounds(result, sums))
    table.add_row("time", _times(sums))
    if sums.bytes_down + sums.bytes_up:
        up, down = words.size(sums.bytes_up), words.size(sums.bytes_down)
        table.add_row("traffic", f"{up} up, {down} down")
    if sums.clients:
        table.add_row("clients/s", f"{words.rate(sums.clients_per_s)}{_balance(result)}")
    for number, line in enumerate(result.privacy):
        table.add_row("" if number else "privacy", Text(line))
    if result.engine:
        table.add_row("engine", Text(result.engine))
    table.add_row("SHA-256", Text(f"{result.digest} of the model"))
    if result.folder is None:
        return table
    table.add_row("results", Text(str(result.folder)))
    table.add_row("report", Text(str(result.folder / "report.html")))
    load = Text("\n".join(f"  {line}" for line in load_code(result)), overflow="fold")
    return Group(table, Text(), Text("Load the model:", "dim"), load)


def best_line(result: Result) -> str:
    """The model that [best] marks, and its file; empty if there is none."""
    best = result.best_model
    if best is None:
        return ""
    if best["round"] is None:
        return f"none: {best['metric']} was missing or not finite in every evaluation"
    shown = words.metric(best["metric"], best["value"])
    line = f"round {best['round']:,}, {best['metric']} {shown} on clients"
    return line if result.folder is None else f"{line}: best.safetensors"


def load_code(result: Result) -> list[str]:
    """Lines of Python that load the model; empty without a folder."""
    if result.folder is None:
        return []
    path = str(result.folder / "model.safetensors")
    return ["from fedloom.client import load_file", f"params = load_file({path!r})"]


def _metric(result: Result, source: str, metric: str) -> Text:
    points = curves.series(result.records, source, metric)
    last, top = points[-1], curves.best(points, metric)
    text = Text.assemble(
        (words.metric(metric, last[1]), "bold green" if top else "bold red"),
        f" on {curves.SOURCES[source]}" if source != "training" else " during training",
    )
    if top is not None and top[1] != last[1]:
        text.append(f", best {words.metric(metric, top[1])} in round {top[0]:,.0f}")
    return text


def _rounds(result: Result, sums: curves.RunTotals) -> Text:
    text = Text(words.count(sums.trained))
    if sums.abandoned:
        text.append(f", and {sums.abandoned:,} abandoned", "yellow")
    if result.enough:
        text.append(f"; finished early: {result.enough}")
    if result.stopped:
        text.append(f"; stopped: {result.stopped}", "yellow")
        if result.stopped == INTERRUPTED and result.folder is not None:
            text.append(f"; {words.RESUME} continues")
    return text


def _times(sums: curves.RunTotals) -> str:
    virtual = f"{words.duration(sums.virtual_s)} of virtual time in "
    return f"{virtual if sums.virtual_s is not None else ''}{words.duration(sums.wall_s)}"


def _balance(result: Result) -> str:
    workers, even = curves.workers(result.records), curves.mean_balance(result.records)
    if even is None:
        return ""
    return f" in {len(workers)} workers, {words.share(even)} balanced"
