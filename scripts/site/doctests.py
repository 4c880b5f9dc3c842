"""A griffe extension: examples in docstrings become code blocks.

Google's style has them in a section of their own; ours stand where they explain something.
"""

import re

from griffe import Extension

_LINE = r"^[ \t]*(?:>>>|\.\.\.).*\n?"
_PRINTED = r"^(?![ \t]*(?:>>>|\.\.\.))[ \t]*\S.*\n?"
_EXAMPLE = re.compile(f"(?:{_LINE}(?:{_PRINTED})*)+", re.MULTILINE)


def fenced(text):
    """A docstring with its examples in fences."""

    def block(found):
        lines = found[0].rstrip().split("\n")
        margin = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
        return "\n".join(["```pycon", *(line[margin:] for line in lines), "```", ""])

    return _EXAMPLE.sub(block, text)


class Doctests(Extension):
    """Fences the examples of every docstring."""

    def on_object(self, *, obj, **_):
        """Change a docstring before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
