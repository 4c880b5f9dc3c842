"""A run on the screen: its open round with all members, and the metrics of its rounds."""

from typing import Any

from rich.text import Text

from fedloom.cli.common import masking, output
from fedloom.cli.common.best import best_line
from fedloom.cli.top.bars import Glyphs, bar, columns, sparkline
from fedloom.cli.top.view import View, rule

CELL = 26
NAME = 10
"""Width of a member, and of its name."""


def open_round(view: View, width: int, room: int) -> list[Text]:
    """The selected run's open round: phase, quorum bar, deadline, members."""
    facts, g = view.facts, view.glyphs
    run = facts.selected(view.run) if facts else None
    if run is None or facts is None or room < 2:
        return []
    live = run["live"] or {}
    now = live.get("round")
    if now is None:
        why = "the run is paused" if run["state"] == "paused" else "too few clients are available"
        waiting = f" No round is open: {why}. {live.get('clients_available', 0)} clients are idle."
        why_paused = [Text(f" {run['reason']}", style="yellow")] if run["reason"] else []
        return [Text(), rule(run["id"], width, g), Text(waiting), *cut(why_paused, width)]
    title = f"round {now['number']} {g.dot} {now['kind']} {g.dot} {_state(now)} {g.dot} {run['id']}"
    lines = [Text(), rule(title, width, g), _updates(now, width, g)]
    if deadline := _deadline(now, run, view, width):
        lines.append(deadline)
    lines += cut([Text(f" {output.failure(each)}", style="red") for each in _failures(now)], width)
    return lines + _members(now, width, max(0, room - len(lines)), view)


def _failures(now: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = now.get("failures") or []
    return found[:2]


def cut(lines: list[Text], width: int) -> list[Text]:
    """Lines that fit the width."""
    for line in lines:
        line.truncate(width - 1, overflow="ellipsis")
    return lines


def _state(now: dict[str, Any]) -> str:
    if now["paused"]:
        return f"{now['state']}, paused"
    if now["state"] == "selecting":
        return f"selecting, waits for {now['goal']} clients ({now['available']} available)"
    return masking.phase(now)


def _updates(now: dict[str, Any], width: int, g: Glyphs) -> Text:
    if told := masking.sent(now):
        line = Text().append(" masking  ", style="dim")
        share = now["masking"]["sent"] / now["masking"]["asked"]
        return line + bar(share, _bar_width(width), g, "cyan") + Text(f" {told}")
    accepted, goal, quorum = now["accepted"], now["goal"], now["quorum"]
    text = f" {accepted} of {goal}, quorum {quorum}{' reached' if accepted >= quorum else ''}"
    line = Text().append(f" {masking.updates(now):<8} ", style="dim")
    style = "green" if accepted >= quorum else "yellow"
    mark = None if quorum >= goal else quorum / goal
    line += bar(accepted / goal, _bar_width(width), g, style, mark)
    return line + Text(text)


def _deadline(now: dict[str, Any], run: dict[str, Any], view: View, width: int) -> Text | None:
    left_s = now["deadline_left_s"]
    if left_s is None:
        return None
    if now.get("gives_up_in_s") is not None:
        return Text(" The quorum is out of reach: the round ends in a moment.", style="red")
    assert view.facts is not None
    if not now["paused"]:
        left_s -= max(0.0, view.now - view.facts.at)
    whole = next((r["deadline_at"] - r["opened_at"] for r in run["rounds"]
                  if r["number"] == now["number"]), left_s)  # fmt: skip
    share = left_s / whole if whole > 0 else 0.0
    line = Text().append(" deadline ", style="dim")
    style = "red" if share < 0.1 else "yellow" if share < 0.25 else "cyan"
    line += bar(share, _bar_width(width), view.glyphs, style)
    paused = "paused, " if now["paused"] else ""
    left = f"{output.duration(left_s)} left" if left_s > 0 else "is over"
    return line + Text(f" {paused}{left}")


def _bar_width(width: int) -> int:
    return max(8, min(50, width - 46))


def _members(now: dict[str, Any], width: int, room: int, view: View) -> list[Text]:
    members = sorted(now["members"].items())
    if not members or room < 1:
        return []
    counts = ", ".join(f"{n} {phase}" for phase, n in now["clients"].items() if n)
    lines = [Text(f" {len(members)} members: {counts}", style="dim")]
    across = max(1, (width - 1) // CELL)
    cells = [_member(name, phase, now["progress"].get(name), view) for name, phase in members]
    rows = [cells[i : i + across] for i in range(0, len(cells), across)]
    rows = rows[min(view.scroll, max(0, len(rows) - 1)) :] if view.detail else rows
    space = room - 1
    if len(rows) > space:
        hidden = sum(len(row) for row in rows[max(0, space - 1) :])
        rows = rows[: max(0, space - 1)]
        more = Text(f" {view.glyphs.more} {hidden} more", style="dim")
    else:
        more = None
    for row in rows:
        line = Text(" ")
        for cell in row:
            line += cell
        lines.append(line)
    return [*lines, more] if more is not None else lines


def _member(name: str, phase: str, progress: dict[str, Any] | None, view: View) -> Text:
    state = Text(f"{view.glyphs.phase(phase)} {phase}", style=output.COLOURS.get(phase, "dim"))
    if phase == "training" and progress is not None:
        state.append(f" {progress['fraction']:.0%}")
    shown = Text(name)
    shown.truncate(min(NAME, CELL - 2 - state.cell_len), overflow="ellipsis", pad=True)
    cell = Text.assemble(shown, " ", state)
    cell.pad_right(max(0, CELL - cell.cell_len))
    return cell


# ---- one run -------------------------------------------------------------------------------------


def detail(view: View, width: int, room: int) -> list[Text]:
    """One run: its settings, its metrics, its open round and its last rounds."""
    facts, g = view.facts, view.glyphs
    if facts is None or facts.run is None:
        return [Text(), Text(" The run has ended.")]
    run = facts.run
    lines = [Text(), rule(run["id"], width, g), *_facts(run, g), *curves(run, width, g)]
    rounds = [r for r in reversed(run["rounds"]) if r["closed_at"]]
    below = min(len(rounds), max(0, (room - len(lines)) // 3)) if rounds else 0
    left = room - len(lines) - (below + 2 if below else 0)
    lines += open_round(view, width, left)
    if below:
        lines += [Text() for _ in range(room - len(lines) - below - 2)]
        lines += _rounds(rounds[:below], width, g)
    return lines


def _facts(run: dict[str, Any], g: Glyphs) -> list[Text]:
    done = f"{run['rounds_committed']} of {run['rounds_total']} rounds"
    text = f" {run['state']} {g.dot} {done} {g.dot} {run['spec']['strategy']['name']} {g.dot} "
    text += f"model {run['model'][:12]} {g.dot} started {output.moment(run['created_at'])}"
    lines = [Text(text)]
    if run["reason"]:
        lines.append(Text(f" {run['reason']}", style="yellow"))
    if run.get("masking"):
        lines.append(Text(f" masked: {run['masking']['words']}"))
    if run["best"] is not None:
        lines.append(Text(f" {best_line(run['best'])}"))
    costs = [r["privacy"]["epsilon"] for r in run["rounds"] if r["privacy"]]
    if run["privacy"]:
        spent = (
            f" privacy: epsilon {max(costs, default=0.0):.4g} of {run['privacy']['epsilon']:.4g}"
        )
        lines.append(Text(spent))
    return lines


def curves(run: dict[str, Any], width: int, g: Glyphs) -> list[Text]:
    """The metrics of the run's rounds: the last value of each, and a sparkline."""
    lines = []
    for what in ("training", "evaluation"):
        series: dict[str, list[float | None]] = {}
        rounds = [r for r in run["rounds"] if r[what]]
        for r in rounds:
            for name, value in (r[what].get("values") or {}).items():
                series.setdefault(name, []).append(value)
        for name, values in sorted(series.items())[:3]:
            line = Text().append(f" {what:<10} ", style="dim")
            line.append(f"{name:<10.10}")
            line.append(f" {values[-1]:>9.4g}  ", style="bold")
            line.append(sparkline(values, max(8, width - 40), g), style="cyan")
            lines.append(line)
    return lines[:6]


def _rounds(rounds: list[dict[str, Any]], width: int, g: Glyphs) -> list[Text]:
    lines = [rule("rounds", width, g)]
    head = f" {'ROUND':>5}  {'KIND':<8}  {'STATE':<10}  {'COUNTED':>7}  {'TOOK':>12}"
    lines.append(columns(Text(head, style="dim"), Text(), width))
    for r in rounds:
        took = output.duration(r["closed_at"] - r["opened_at"])
        line = Text(f" {r['number']:>5}  {r['kind']:<8}  ")
        line.append(f"{r['state']:<10}", style=output.COLOURS.get(r["state"], ""))
        line.append(f"  {r['accepted']:>7}  {took:>12}  ")
        measured = output.metrics(r["training"] or r["evaluation"])
        line.append(r["reason"] or measured, style="dim")
        line.truncate(width - 1, overflow="ellipsis")
        lines.append(line)
    return lines
