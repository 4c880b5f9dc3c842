"""The state that the screen is drawn from, and lines that its parts share."""

from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from fedloom.cli.top.bars import PHASES, UNICODE, Glyphs
from fedloom.cli.top.facts import ServerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the screen shows.

    Attributes:
        facts: of the server; None before the first answer.
        now: as `time.monotonic` counts.
        run: id of the selected run.
        detail: show that run alone.
        help: show the keys.
        scroll: lines by which the members are moved up.
        question: the consequence that is to be confirmed; empty for none.
        message: result of the last action.
        lost_at: since when the server is unreachable; None while it answers.
        where: which server.
    """

    facts: ServerFacts | None
    now: float
    where: str
    run: str | None = None
    detail: bool = False
    help: bool = False
    scroll: int = 0
    question: str = ""
    message: str = ""
    lost_at: float | None = None
    glyphs: Glyphs = field(default=UNICODE)


def rule(title: str, width: int, glyphs: Glyphs) -> Text:
    """A line across the screen with a title in it."""
    line = Text(f"{glyphs.rule} ", style="dim")
    line.append(title, style="bold not dim")
    line.append(f" {glyphs.rule * max(0, width - line.cell_len - 1)}")
    return line


def phase_text(name: str, told: dict[str, Any] | None, g: Glyphs) -> Text:
    """A client's phase: its sign, its name, and the progress of its training."""
    text = Text(f"{g.phase(name)} {name}", style=PHASES.get(name, "dim"))
    if name == "training" and told is not None:
        text.append(f" {told['fraction']:.0%}")
    return text
