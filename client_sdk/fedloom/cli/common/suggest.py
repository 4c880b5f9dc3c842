"""Which command was meant by a name that no command has."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches

import click

VERBS = {
    "add": ("create", "enroll", "upload"),
    "begin": ("submit", "run"),
    "cancel": ("stop", "abort", "revoke"),
    "check": ("test", "doctor", "verify", "health"),
    "continue": ("resume",),
    "create": ("init", "submit", "add"),
    "delete": ("remove", "revoke", "cancel", "stop"),
    "end": ("stop", "close"),
    "get": ("show", "export", "list"),
    "info": ("show", "status"),
    "kill": ("stop", "abort"),
    "launch": ("run", "submit"),
    "ls": ("list",),
    "make": ("create", "init"),
    "new": ("create", "init", "submit"),
    "register": ("enroll",),
    "rm": ("remove", "revoke", "cancel"),
    "save": ("export", "upload"),
    "serve": ("run",),
    "show": ("status", "list"),
    "start": ("run", "submit", "resume"),
    "unpause": ("resume",),
    "view": ("show", "status"),
    "watch": ("status", "top"),
}
"""Other words for commands, as people type them: what may be meant, likeliest first."""
PROGRAM, MOST = "fedloom", 3


def meant(group: click.Group, ctx: click.Context, words: Sequence[str]) -> str:
    """Suggest commands for words of which the first names none.

    Args:
        group: in which the first word was looked for.
        ctx: of the group.
        words: of the command line, from that one on.

    Returns:
        A sentence after a blank; empty without a suggestion.
    """
    near = list(dict.fromkeys(_meant(group, ctx, words)))
    found = (near or list(_elsewhere(ctx.find_root(), words[0])))[:MOST]
    if not found:
        return ""
    quoted = [f"`{command}`" for command in found]
    listed = quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
    return f" Did you mean {listed}?"


def _meant(group: click.Group, ctx: click.Context, words: Sequence[str]) -> Iterator[str]:
    groups = ctx.command_path.split()[1:]
    word, there = words[0], group.list_commands(ctx)
    close = get_close_matches(word.lower(), there, MOST, 0.65)
    for name in (*close, *(name for name in VERBS.get(word, ()) if name in there)):
        inner = group.get_command(ctx, name)
        rest = words[1:2] if isinstance(inner, click.Group) and words[1:2] else []
        if rest and isinstance(inner, click.Group) and inner.get_command(ctx, rest[0]) is None:
            rest = []
        yield " ".join((PROGRAM, *groups, name, *rest))


def _elsewhere(root: click.Context, word: str) -> Iterator[str]:
    """Commands of this name in any group."""
    top = root.command
    assert isinstance(top, click.Group)
    for name in top.list_commands(root):
        group = None
        with suppress(Exception):  # an extra is not installed
            group = top.get_command(root, name)
        if isinstance(group, click.Group) and word in group.list_commands(root):
            yield f"{PROGRAM} {name} {word}"
