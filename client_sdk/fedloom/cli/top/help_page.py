"""The help page: keys and symbols."""

from rich.text import Text

from fedloom.cli.common.output import COLOURS
from fedloom.cli.top.bars import Glyphs

_KEYS = (
    ("j, k or arrows", "select a run; in a run, scroll its members"),
    ("enter", "show only the selected run; enter again, or esc, to go back"),
    ("p", "pause or resume the selected run, after confirmation"),
    ("c", "close its open round now, with its updates, after confirmation"),
    ("ctrl-l", "redraw the screen"),
    ("?", "this page"),
    ("q", "quit; the server keeps running"),
)
_WORDS = (
    ("offered", "the client has not answered the offer yet"),
    ("training", "the client trains; with its progress if it reports one"),
    ("ready", "masked rounds: trained, waits for its masking session or is in one"),
    ("reported", "the update was accepted"),
    ("declined", "the client declined the offer"),
    ("failed", "the training failed"),
    ("refused", "the server refused the update"),
    ("late", "not finished when the round ended"),
    ("lost", "the connection was lost"),
)


def lines(g: Glyphs, width: int) -> list[Text]:
    """Draw the page."""
    page = [Text(), Text(" Keys", style="bold")]
    page += [Text(f"   {key:<16}").append(what, style="dim") for key, what in _KEYS]
    page += [Text(), Text(" Members of a round", style="bold")]
    for name, what in _WORDS:
        line = Text("   ").append(f"{g.phase(name)} {name:<14}", style=COLOURS.get(name, ""))
        page.append(line.append(what, style="dim"))
    page += [Text(), Text(f" In the bar of updates, {g.mark} is the quorum.", style="dim")]
    for line in page:
        line.truncate(width)
    return page
