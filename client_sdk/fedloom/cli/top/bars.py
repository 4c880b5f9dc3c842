"""Bars, sparklines and signs, in a terminal's own characters; in ASCII where it has no others."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The signs that a terminal can show. What they mean is always said in a word beside them."""

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
        """The sign of a member's phase."""
        signs = {"training": self.here, "reported": self.good, "offered": self.idle,
                 "declined": self.dot, "failed": self.bad, "refused": self.bad,
                 "late": self.warn, "lost": self.warn}  # fmt: skip
        return signs.get(name, self.dot)


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
"""Sign and colour of the server's health."""

PHASES = {"training": "cyan", "reported": "green", "failed": "red", "refused": "red",
          "late": "yellow", "lost": "yellow"}  # fmt: skip


def bar(share: float, width: int, glyphs: Glyphs, style: str, mark: float | None = None) -> Text:
    """A bar that is full to a share, with a mark at another.

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
    """The last values as heights, the lowest to the highest of them.

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
    """A line with something at each end; the left is cut where both do not fit."""
    room = max(0, width - right.cell_len - (2 if right.cell_len else 0))
    left = left.copy()
    left.truncate(room, overflow="ellipsis", pad=True)
    gap = Text(" " * (width - room - right.cell_len))
    return Text.assemble(left, gap, right)
