"""What the keys and the signs mean."""

from rich.text import Text

from fedloom.cli.top.bars import PHASES, Glyphs

_KEYS = (
    ("j, k or arrows", "move among the runs; in a run, among its members"),
    ("enter", "show the selected run alone; again, or esc, to go back"),
    ("p", "pause the selected run, or resume it; it asks first"),
    ("c", "close its open round now, with the updates that it has; it asks first"),
    ("ctrl-l", "paint the screen anew"),
    ("?", "this page"),
    ("q", "quit; the server goes on"),
)
_WORDS = (
    ("offered", "asked, and not yet answered"),
    ("training", "at work, and how far if it says so"),
    ("reported", "its update counted"),
    ("declined", "does not want to, or cannot now"),
    ("failed", "gave up"),
    ("refused", "sent what was turned away"),
    ("late", "not done when the round ended"),
    ("lost", "out of contact"),
)


def lines(g: Glyphs, width: int) -> list[Text]:
    """The page."""
    page = [Text(), Text(" Keys", style="bold")]
    page += [Text(f"   {key:<16}").append(what, style="dim") for key, what in _KEYS]
    page += [Text(), Text(" Members of a round", style="bold")]
    for name, what in _WORDS:
        line = Text("   ").append(f"{g.phase(name)} {name:<14}", style=PHASES.get(name, ""))
        page.append(line.append(what, style="dim"))
    page += [Text(), Text(f" In the bar of updates, {g.mark} is the quorum.", style="dim")]
    for line in page:
        line.truncate(width)
    return page
