"""The terminal: paints changed lines, reads keys, and restores the terminal at the end.

Invariant: after a key, an error or a signal that ends the program, the terminal is as before. Only
changed lines are written, which avoids flicker and needs little bandwidth.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Self

from rich.console import Console
from rich.segment import Segments
from rich.text import Text

from fedloom.protocol.errors import UsageError

if sys.platform == "win32":
    raise UsageError("fedloom top needs a POSIX terminal. Use the console, or WSL.")
import termios
import tty

ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"

_KEYS = {"\r": "enter", "\n": "enter", "\x1b": "esc", "\x1b[A": "k", "\x1bOA": "k",
         "\x1b[B": "j", "\x1bOB": "j", "\x1b[C": "enter", "\x1b[D": "esc", "\x7f": "esc",
         "\x03": "q", "\x0c": "redraw"}  # fmt: skip


class Terminal:
    """Full-screen mode, while the context is open.

    Args:
        put: called with the name of each key, and with `resize`, from other threads.
    """

    def __init__(self, put: Callable[[str], None]) -> None:
        self._put = put
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._console = Console(force_terminal=True, highlight=False, legacy_windows=False)
        self._painted: list[str] = []
        self._size = (0, 0)
        self._before: list[Any] = []
        self._handlers: dict[signal.Signals, Any] = {}

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        columns, rows = os.get_terminal_size(self._out)
        return max(20, columns or 80), max(5, rows or 24)

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._in)
        for number, handler in (
            (signal.SIGWINCH, self._resized),
            (signal.SIGTERM, self._ended),
            (signal.SIGHUP, self._ended),
            (signal.SIGTSTP, self._suspended),
        ):
            self._handlers[number] = signal.signal(number, handler)
        self._begin()
        threading.Thread(target=self._read, name="keys", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._end()

    def _begin(self) -> None:
        tty.setcbreak(self._in)
        self._write(ENTER)
        self.repaint()

    def _end(self) -> None:
        self._write(LEAVE)
        termios.tcsetattr(self._in, termios.TCSADRAIN, self._before)

    def repaint(self) -> None:
        """Paint every line the next time, because another program may have overwritten them."""
        self._painted = []

    def paint(self, lines: Sequence[Text]) -> None:
        """Show these lines from the top; write only those that changed."""
        size = self.size
        if size != self._size:
            self._size, self._painted = size, []
        columns, rows = size
        texts = [self._encoded(line, columns) for line in lines[:rows]]
        out = [] if self._painted else ["\x1b[0m\x1b[2J"]
        for row, text in enumerate(texts):
            if row >= len(self._painted) or self._painted[row] != text:
                out.append(f"\x1b[{row + 1};1H{text}\x1b[0m\x1b[K")
        out += [f"\x1b[{row + 1};1H\x1b[K" for row in range(len(texts), len(self._painted))]
        if out:
            self._write("".join(out))
        self._painted = texts

    def _encoded(self, line: Text, columns: int) -> str:
        line = line.copy()
        line.no_wrap = True
        line.truncate(columns)
        options = self._console.options.update(width=columns, height=1)
        segments = self._console.render_lines(line, options, pad=False)[0]
        with self._console.capture() as captured:
            self._console.print(Segments(segments), end="", soft_wrap=True)
        return captured.get()

    def _write(self, text: str) -> None:
        data = text.encode(sys.stdout.encoding or "ascii", "replace")
        while data:
            data = data[os.write(self._out, data) :]

    def _read(self) -> None:
        while keys := os.read(self._in, 64).decode("utf-8", "replace"):
            for key in split(keys):
                self._put(_KEYS.get(key, key))
        self._put("q")  # standard input was closed

    def _resized(self, _: int, __: FrameType | None) -> None:
        self._put("resize")

    def _ended(self, number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    def _suspended(self, number: int, _: FrameType | None) -> None:
        self._end()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # stops here, and continues when back in the foreground
        signal.signal(number, self._suspended)
        self._begin()
        self._put("resize")


def split(text: str) -> list[str]:
    r"""Split a terminal's input into keys.

    >>> split("jj\x1b[A\x1b")
    ['j', 'j', '\x1b[A', '\x1b']
    """
    keys = []
    while text:
        length = 1
        if text[0] == "\x1b" and text[1:2] in ("[", "O"):
            length = next((i + 1 for i, c in enumerate(text[2:], 2) if c.isalpha() or c == "~"), 2)
        keys.append(text[:length])
        text = text[length:]
    return keys
