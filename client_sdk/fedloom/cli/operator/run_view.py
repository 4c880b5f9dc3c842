"""The output of `fedloom run list` and `run status`: progress, open round, past rounds."""

import time
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedloom.cli.common import masking, output
from fedloom.cli.common.best import best_line, short_best
from fedloom.cli.connection.api_client import Control
from fedloom.cli.connection.default_run import ACTIVE
from fedloom.cli.operator import watch as watching

ROWS = 15


def watch(control: Control, run: str) -> dict[str, Any]:
    """Show a run until it ends; return its final state."""
    ended: dict[str, Any] = watching.watch(
        control,
        lambda: control.get("runs", run),
        lambda found: render(found, rows=ROWS),
        ("run", "round", "clients"),
        over=lambda found: found["state"] not in ACTIVE,
        end_only=True,
    )
    if not (output.wants_json() or output.console().is_terminal):
        output.show(render(ended, rows=ROWS))
    return ended


def with_all_rounds(control: Control, found: dict[str, Any]) -> dict[str, Any]:
    """A run with all its rounds, read page by page."""
    rounds = list(found["rounds"])
    while rounds and found["rounds_earlier"]:
        page = control.get("runs", found["id"], "rounds", before=rounds[0]["number"], limit=500)
        rounds = page["rounds"][::-1] + rounds
        if page["more"] is None:
            break
    return {**found, "rounds": rounds, "rounds_earlier": 0}


def listing(runs: list[dict[str, Any]], empty: str) -> RenderableType:
    """A table of runs, with their studies if they are of several; `empty` without any."""
    several = len({r["study"] for r in runs}) > 1
    rows = (
        (
            output.escape(r["id"]),
            output.state(r["state"]) + _place(r),
            *([r["study"] or "-"] if several else []),
            f"{r['rounds_committed']}/{r['rounds_total']}",
            output.moment(r["created_at"]),
            output.duration(r["ended_at"] - r["created_at"]) if r["ended_at"] else "-",
            r["model"][:12],
            output.escape(short_best(r["best"])),
            output.escape(r["reason"]),
        )
        for r in runs
    )
    study = ("STUDY",) if several else ()
    columns = ("ID", "STATE", *study, ">ROUNDS", "STARTED", ">TOOK", "MODEL", "BEST", "~REASON")
    return output.table_or(columns, rows, empty)


def _place(run: dict[str, Any]) -> str:
    """The place of a run in the queue, if it is queued."""
    return f" {run['place']}" if run.get("place") else ""


def render(found: dict[str, Any], rows: int | None) -> RenderableType:
    """Draw a run.

    Args:
        found: the API's document.
        rows: number of rounds to list, the latest; None for all.
    """
    parts: list[RenderableType] = [_headline(found), _facts(found), *_failing(found)]
    if found["best"] is not None:
        parts.append(Text(best_line(found["best"]), style="dim"))
    if found["privacy"] is not None:
        parts.append(_privacy(found))
    if found.get("masking") is not None:
        claim = found["masking"]["words"]
        parts.append(Text(f"masked: {claim}, and no single update", style="dim"))
    if found.get("sums") is not None:
        parts.append(_sums(found["sums"]))
    live = found["live"]
    if live is not None:
        parts.append(_open_round(live, found))
    rounds = found["rounds"] if rows is None else found["rounds"][-rows:]
    if rounds:
        parts += [Text(), _rounds(rounds)]
    if spread := _spread(found):
        parts += [Text(), spread]
    hidden = found["rounds_earlier"] + len(found["rounds"]) - len(rounds)
    if hidden:
        parts.append(Text(f"{hidden} earlier rounds: --all shows them.", style="dim"))
    return Group(*parts)


def _headline(found: dict[str, Any]) -> RenderableType:
    done, total = found["rounds_committed"], found["rounds_total"]
    line = Table.grid(padding=(0, 2))
    line.add_row(
        f"[bold]{output.escape(found['id'])}[/]",
        output.state(found["state"]) + _place(found),
        f"{done} of {total} rounds",
        ProgressBar(total=total, completed=done, width=32),
    )
    return line


def _facts(found: dict[str, Any]) -> RenderableType:
    end = found["ended_at"] or time.time()
    facts = [
        *_subject(found),
        *_rank(found),
        f"started {output.moment(found['created_at'])}",
        output.duration(end - found["created_at"]),
    ]
    if (left := output.time_left(found)) != "-":
        facts.append(f"about {left} left")
    line = Text(" · ".join(facts), style="dim")
    if found["reason"]:
        style = "red" if found["state"] == "failed" else "yellow"
        line.append(f"\n{output.harmless(found['reason'])}", style=style)
    return line


def _failing(found: dict[str, Any]) -> list[RenderableType]:
    """What fails, unless the run's reason says so, and what to do."""
    failing = found.get("failing")
    if failing is None:
        return []
    told = bool(found["reason"]) and found["reason"].rstrip(". ") in failing["what"]
    style = "red" if failing["stuck"] else "yellow"
    what = [] if told else [Text(output.harmless(failing["what"]), style=style)]
    if told:
        what = [Text("The run cannot continue.", style=style)]
    return [*what, Text(f"What to do: {output.harmless(failing['todo'])}")]


def _subject(found: dict[str, Any]) -> tuple[str, ...]:
    """What a run is about: a model and its strategy, or a Flower `ServerApp`."""
    if app := found["spec"].get("flower", {}).get("server_app"):
        return (f"ServerApp {app}",)
    return f"model {found['model'][:12]}", found["spec"]["strategy"]["name"]


def _rank(found: dict[str, Any]) -> tuple[str, ...]:
    """Study, priority and share, as far as they are not the usual ones."""
    usual = {"study": "", "priority": 0, "share": 1.0}
    values = {name: found.get(name, value) for name, value in usual.items()}
    return tuple(
        f"{n} {v:g}" if n == "share" else f"{n} {v}" for n, v in values.items() if v != usual[n]
    )


def _privacy(found: dict[str, Any]) -> RenderableType:
    """The epsilon spent so far and at the end of the run."""
    claim = found["privacy"]
    costs = [r["privacy"]["epsilon"] for r in found["rounds"] if r["privacy"]]
    spent = f"privacy: epsilon {max(costs, default=0.0):.4g} so far, {claim['epsilon']:.4g} after "
    spent += f"{claim['rounds']} rounds (delta {claim['delta']:g}, {claim['mechanism']})"
    detail = f"one client's whole contribution, against {claim['against']}; {claim['sampling']}"
    return Text(f"{spent}\n  {detail}", style="dim")


def _sums(grid: dict[str, Any]) -> RenderableType:
    """The steps and the largest error of narrow sums."""
    from fedloom.strategies.masking.sessions import sum_lines  # noqa: PLC0415 - it imports numpy

    first, error, *_ = sum_lines(grid)
    return Text(f"sums: {first}\n  {error}", style="dim")


def _open_round(live: dict[str, Any], found: dict[str, Any]) -> RenderableType:
    now = live["round"]
    if now is None:
        return Text(f"no round is open · {live['clients_available']} clients idle", style="dim")
    line = Text(f"round {now['number']} ({now['kind']}) ", style="cyan")
    if now["state"] == "selecting":
        held = now.get("held_back", 0)
        rest = f", {held} held back by the privacy claim" if held else ""
        left = now.get("left_to_others", 0)
        rest += f", {left} left to runs that come first" if left else ""
        waiting = f"waits for {now['goal']} clients ({now['available']} available{rest})"
        return line.append(waiting, style="yellow" if found["state"] == "running" else "dim")
    so_far = f"{now['accepted']} of {now['goal']} {masking.updates(now)}"
    line.append(f"{masking.phase(now)} · {masking.sent(now) or so_far}", style="default")
    phases = ", ".join(f"{n} {phase}" for phase, n in now["clients"].items() if n)
    left_s = now["deadline_left_s"]
    if phases:
        line.append(f" · {phases}", style="default")
    if now.get("training") is not None:
        line.append(f" · {now['training']:.0%} done{_losses(now)}", style="default")
    if now["paused"]:
        line.append(" · paused", style="yellow")
    elif (ends_s := now.get("gives_up_in_s")) is not None:
        ends = f" · quorum out of reach, ends in {output.duration(ends_s)}"
        line.append(ends, style="red")
    elif left_s is not None:
        line.append(f" · {output.duration(max(left_s, 0))} left", style="dim")
    for each in now.get("failures", ()):
        line.append(f"\n  {output.failure(each)}", style="red")
    return line


def _losses(now: dict[str, Any]) -> str:
    losses = [told["loss"] for told in now["progress"].values() if told["loss"] is not None]
    return f" (loss {sum(losses) / len(losses):.3g})" if losses else ""


def _updates(round_: dict[str, Any]) -> str:
    behind = round_.get("staleness", 0.0)
    return f"{round_['accepted']} ({behind:.1f} behind)" if behind else str(round_["accepted"])


def _spread(found: dict[str, Any]) -> RenderableType | None:
    """The last evaluation's quantiles over clients, and each client's; evaluation-only runs."""
    evaluations = [r["evaluation"] for r in found["rounds"] if r["evaluation"]]
    if not found["spec"].get("evaluate_only") or not evaluations:
        return None
    last = evaluations[-1]
    spread: dict[str, dict[str, float]] = last.get("quantiles") or {}
    shares = sorted({share for values in spread.values() for share in values}, key=float)
    rows = [
        (
            output.escape(name),
            f"{mean:.4g}",
            *(f"{spread.get(name, {}).get(share, float('nan')):.4g}" for share in shares),
        )
        for name, mean in sorted(last["values"].items())
    ]
    named = {0.0: "MINIMUM", 0.5: "MEDIAN", 1.0: "MAXIMUM"}
    titles = [named.get(float(share), f"{100 * float(share):g} %") for share in shares]
    table = output.make_table(["METRIC", ">MEAN", *(f">{title}" for title in titles)], rows)
    head = Text(f"Over clients, {last['num_examples']} examples in total:", style="dim")
    each = [
        (output.escape(name), str(client["num_examples"]), output.escape(output.metrics(client)))
        for name, client in sorted((last.get("clients") or {}).items())
    ]
    if not each:
        return Group(head, table)
    clients = output.make_table(["CLIENT", ">EXAMPLES", "EVALUATION"], each)
    return Group(head, table, Text(), clients)


def _rounds(rounds: list[dict[str, Any]]) -> RenderableType:
    rows = [
        (
            str(r["number"]),
            r["kind"],
            "undone" if r["undone_at"] else output.state(r["state"]),
            _updates(r),
            output.duration((r["closed_at"] or time.time()) - r["opened_at"]),
            output.metrics(r["training"]),
            output.metrics(r["evaluation"]),
            f"{r['privacy']['epsilon']:.4g}" if r["privacy"] else "",
            f"{r['underflow']:.2%}" if r.get("underflow") is not None else "",
            output.escape(r["reason"]),
        )
        for r in rounds
    ]
    columns = (
        *(">ROUND", "KIND", "STATE", ">UPDATES", ">TOOK"),
        *("TRAINING", "EVALUATION", ">EPSILON", ">ZEROED", "~NOTE"),
    )
    return output.make_table(columns, rows, required=5)
