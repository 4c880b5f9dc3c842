"""The screen as lines of text: a pure function of the view.

Invariant: each colour has a word or a symbol with the same meaning.
"""

import textwrap
import time
from typing import Any

from rich.text import Text

from fedloom.cli.common import output
from fedloom.cli.common.best import best_line, short_best
from fedloom.cli.top import help_page, run_page
from fedloom.cli.top.bars import LEVELS, Glyphs, bar, columns
from fedloom.cli.top.view import View, rule

KEYS = (
    ("j k", "move"),
    ("enter", "detail"),
    ("p", "pause"),
    ("c", "close round"),
    ("?", "help"),
    ("q", "quit"),
)
MAX_RUNS = 6


def frame(view: View, width: int, height: int) -> list[Text]:
    """Draw exactly `height` lines of at most `width` columns."""
    head, foot = _head(view, width), _foot(view, width)
    room = max(0, height - len(head) - len(foot))
    if view.help:
        body = help_page.lines(view.glyphs, width)
    elif view.facts is None:
        body = [Text(), Text(" Connecting ...", style="dim")]
    elif view.detail:
        body = run_page.detail(view, width, room)
    else:
        body = _overview(view, width, room)
    if view.lost_at is not None:
        body = [Text(line.plain, style="dim") for line in body]
    body = [*body, *(Text() for _ in range(room - len(body)))][:room]
    return [*head, *body, *foot][-height:] if height < len(head) + len(foot) else head + body + foot


# ---- the whole server ----------------------------------------------------------------------------


def _head(view: View, width: int) -> list[Text]:
    g, facts = view.glyphs, view.facts
    title = Text(" fedloom", style="bold")
    if facts is not None and facts.server["federation"] != "fedloom":
        title.append(f" {facts.server['federation']}", style="bold cyan")
    title.append(f" {g.dot} {view.where}", style="dim not bold")
    lines = [columns(title, Text().append(time.strftime("%H:%M:%S "), style="dim"), width)]
    if view.lost_at is not None:
        since = output.duration(max(0.0, view.now - view.lost_at))
        words = f" {g.bad} The server has not answered for {since}. Retrying ..."
        lines.append(Text(words, style="bold red"))
        return [*lines, Text("   The data below is from before.", style="red")]
    if facts is None:
        return lines
    now = facts.overview
    sign, style = LEVELS.get(now["level"], ("warn", "yellow"))
    health = Text(f" {getattr(g, sign)} {now['headline']}", style=f"bold {style}")
    busy = now["clients_online"] - now["clients_available"]
    fail = f", {now['clients_failing']} failing" if now["clients_failing"] else ""
    clients = f"{now['clients_online']} of {now['clients_enrolled']} clients online, {busy} busy"
    if come := now.get("check_ins"):
        clients += f", {come['expected']} check in"
    clients += f"{fail} "
    if health.cell_len + len(clients) + 2 > width:  # the headline has priority
        clients = f"{now['clients_online']}/{now['clients_enrolled']} online "
    lines.append(columns(health, Text(clients), width))
    pace = f"{now['rounds_an_hour']:.4g} rounds per hour {g.dot} " if now["rounds_an_hour"] else ""
    rates = (
        f" {pace}in the last rounds {g.up} {output.size(now['bytes_up'])} "
        f"{g.down} {output.size(now['bytes_down'])}"
    )
    lines.append(Text(rates, style="dim"))
    return lines


def _foot(view: View, width: int) -> list[Text]:
    lines = []
    if view.message:
        lines.append(Text(f" {view.message}", style="bold"))
    if view.question:
        asked = [
            Text(f" {line}", style="bold yellow")
            for line in textwrap.wrap(view.question, width - 2)
        ]
        return [*asked, Text(" Press y to confirm, any other key to cancel.", style="bold reverse")]
    keys = Text(" ")
    for key, what in KEYS:
        named = "back" if view.detail and what == "detail" else what
        keys.append(key, style="bold")
        keys.append(f" {_pause_word(view) if key == 'p' else named}   ", style="dim")
    return [*lines, keys]


def _pause_word(view: View) -> str:
    run = view.facts.selected(view.run) if view.facts else None
    return "resume" if run is not None and run["state"] == "paused" else "pause"


def _overview(view: View, width: int, room: int) -> list[Text]:
    facts, g = view.facts, view.glyphs
    assert facts is not None
    lines: list[Text] = []
    for alert in facts.overview["alerts"][: 3 if room > 18 else 1]:
        lines += _alert(alert, width, g, 3 if room > 18 else 2)
    lines += [Text(), *_runs(view, width)]
    refused = _refusals(facts.refusals, width, g, 5 if room > 30 else 3)
    if room > 24 and facts.run is not None:
        lines += [Text(), *run_page.curves(facts.run, width, g)]
    left = room - len(lines) - len(refused)
    lines += run_page.open_round(view, width, left)
    lines += [Text() for _ in range(room - len(lines) - len(refused))]
    return [*lines, *refused]


def _alert(alert: dict[str, Any], width: int, g: Glyphs, most: int) -> list[Text]:
    """An alert and what to do, each in at most so many lines."""
    sign, style = LEVELS.get(alert["level"], ("warn", "yellow"))
    lines = []
    for text, mark, colour in (
        (alert["what"], getattr(g, sign), style),
        (alert["todo"], " ", "dim"),
    ):
        wrapped = textwrap.wrap(text, max(20, width - 4), max_lines=most, placeholder=" ...")
        lines += [
            Text(f" {mark if first == 0 else ' '} {line}", style=colour)
            for first, line in enumerate(wrapped)
        ]
    return lines


def _runs(view: View, width: int) -> list[Text]:
    facts, g = view.facts, view.glyphs
    assert facts is not None
    if not facts.runs:
        start = " Start one: fedloom run submit run.toml --model init.safetensors"
        return [Text(" No run is active."), Text(start, style="dim")]
    at = facts.index(view.run)
    first = max(0, min(at - MAX_RUNS + 1, len(facts.runs) - MAX_RUNS))
    shown = facts.runs[first : first + MAX_RUNS]
    name_width = min(max(*(len(run["id"]) for run in shown), 3), max(12, width - 58))
    best_width = max(len(short_best(run["best"])) for run in shown)
    fits = name_width + best_width + 51 <= width
    bar_width = max(6, min(30, width - name_width - 51 - (best_width if fits else 0)))
    head = f"   {'RUN':<{name_width}}  {'STATE':<8}  {'ROUNDS':<{bar_width + 10}}  {'LEFT':>15}"
    chosen = facts.runs[at]
    lines = [Text(head + ("  BEST" if fits and best_width else ""), style="dim")]
    for run in shown:
        line = _run(run, view, name_width, bar_width, chosen=run is chosen)
        lines.append(line.append(f"  {short_best(run['best'])}" if fits else "", style="not bold"))
    if best_width and not fits and chosen["best"]:
        lines += run_page.cut([Text(f"   {best_line(chosen['best'])}", style="dim")], width)
    if hidden := len(facts.runs) - len(shown):
        lines.append(Text(f"   {g.more} {hidden} more", style="dim"))
    return lines


def _run(run: dict[str, Any], view: View, names: int, bars: int, *, chosen: bool) -> Text:
    g = view.glyphs
    line = Text(f" {g.here if chosen else ' '} ", style="bold" if chosen else "")
    name = Text(run["id"])
    name.truncate(names, overflow="ellipsis", pad=True)
    line += name
    colour = output.COLOURS.get(run["state"], "")
    line.append(f"  {run['state']:<8}  ", style=f"not bold {colour}".strip())
    done, total = run["rounds_committed"], run["rounds_total"]
    line += bar(done / total if total else 1.0, bars, g, "green")
    line.append(f" {f'{done}/{total}':<9}", style="not bold")
    line.append(f"  {output.time_left(run):>15}", style="not bold")
    return line


def _refusals(refusals: list[dict[str, Any]], width: int, g: Glyphs, most: int) -> list[Text]:
    if not refusals:
        return []
    lines = [rule("recent refusals", width, g)]
    for each in refusals[:most]:
        line = Text(f" {output.moment(each['at'])}  ", style="dim")
        line.append(f"{each['client'] or '-'}", style="not dim")
        line.append(f"  {each['code']}", style="not dim yellow")
        if each.get("times", 1) > 1:
            line.append(f" ×{each['times']}")
        line.append(f"  round {each['round']}: {each['message']}")
        line.truncate(width - 1, overflow="ellipsis")
        lines.append(line)
    return lines
