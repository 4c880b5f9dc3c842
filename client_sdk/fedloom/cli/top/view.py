"""The state that the screen shows, and a line that its parts share."""

from dataclasses import dataclass, field

from rich.text import Text

from fedloom.cli.top.bars import UNICODE, Glyphs
from fedloom.cli.top.facts import ServerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The state that the screen shows.

    Attributes:
        facts: of the server; None before the first response.
        now: time, by `time.monotonic`.
        where: name of the server.
        run: id of the selected run.
        detail: show only that run.
        help: show the help page.
        scroll: number of lines of members that are scrolled out.
        question: the consequence of an action, to be confirmed; empty for none.
        message: result of the last action.
        lost_at: time since which the server is unreachable; None while it answers.
        glyphs: symbols.
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
    """A horizontal line with a title."""
    line = Text(f"{glyphs.rule} ", style="dim")
    line.append(title, style="bold not dim")
    line.append(f" {glyphs.rule * max(0, width - line.cell_len - 1)}")
    return line
