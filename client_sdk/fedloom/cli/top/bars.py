"""Bars, sparklines and symbols, in Unicode or ASCII."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The symbols that a terminal can show. A word beside each gives its meaning."""

    full: str = "█"
    part: str = "▏▎▍▌▋▊▉"
    empty: str = "░"
    mark: str = "┃"
    spark: str = "▁▂▃▄▅▆▇█"
    here: str = "▸"
    rule: str = "─"
    dot: str = "·"
    up: str = "↑"
    down: str = "↓"
    good: str = "●"
    warn: str = "▲"
    bad: str = "✖"
    idle: str = "○"
    more: str = "…"

    def phase(self, name: str) -> str:
        """The symbol of a member's phase."""
        symbols = {"training": self.here, "reported": self.good, "offered": self.idle,
                   "ready": self.good,
                   "failed": self.bad, "refused": self.bad,
                   "late": self.warn, "lost": self.warn}  # fmt: skip
        return symbols.get(name, self.dot)


UNICODE = Glyphs()
ASCII = Glyphs(
    full="#", part="", empty=".", mark="|", spark="_.-=+*%#", here=">", rule="-", dot=".",
    up="up", down="down", good="o", warn="!", bad="x", idle=".", more="...",
)  # fmt: skip

LEVELS = {
    "ok": ("good", "green"),
    "idle": ("idle", "dim"),
    "warn": ("warn", "yellow"),
    "bad": ("bad", "red"),
}
"""Symbol and colour of the server's health."""


def bar(share: float, width: int, glyphs: Glyphs, style: str, mark: float | None = None) -> Text:
    """A bar that is filled to `share`, with a mark at the share `mark`.

    >>> bar(0.5, 4, ASCII, "", mark=0.75).plain
    '##.|'
    """
    share = min(1.0, max(0.0, share))
    steps = len(glyphs.part) + 1
    eighths = math.floor(share * width * steps + 1e-9)
    full, rest = divmod(eighths, steps)
    text = glyphs.full * full + (glyphs.part[rest - 1] if rest else "")
    line = Text(text, style=style)
    line.append(glyphs.empty * (width - len(text)), style="dim")
    if mark is not None and 0 < mark <= 1:
        at = min(width - 1, max(0, math.floor(mark * width + 1e-9)))
        line = line[:at] + Text(glyphs.mark, style="bold") + line[at + 1 :]
    return line


def sparkline(values: Sequence[float | None], width: int, glyphs: Glyphs) -> str:
    """The last values as heights, scaled from their minimum to their maximum.

    >>> sparkline([1.0, None, 2.0, 8.0], 4, ASCII)
    '_ .#'
    """
    shown = list(values)[-width:]
    known = [v for v in shown if v is not None and math.isfinite(v)]
    if not known:
        return ""
    low, span = min(known), (max(known) - min(known)) or 1.0
    top = len(glyphs.spark) - 1
    return "".join(
        " " if v is None or not math.isfinite(v) else glyphs.spark[int((v - low) / span * top)]
        for v in shown
    )


def columns(left: Text, right: Text, width: int) -> Text:
    """A line with texts at both ends; the left one is truncated if they do not fit."""
    room = max(0, width - right.cell_len - (2 if right.cell_len else 0))
    left = left.copy()
    left.truncate(room, overflow="ellipsis", pad=True)
    gap = Text(" " * (width - room - right.cell_len))
    return Text.assemble(left, gap, right)
