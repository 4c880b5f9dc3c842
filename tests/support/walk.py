"""Performs a page's walk-through: writes its files, runs its commands, compares the output.

Between `<!-- walk-through -->` and `<!-- end of walk-through -->` a page may hold

- a fenced block after `<!-- file: NAME -->`: what NAME holds;
- a ```console block: lines that begin with `$ ` are typed, the others are what was printed;
- the same after `<!-- another terminal -->`: its commands go on in the background, and the next
  block waits until their output has come.

Output is compared line by line, up to numbers, digests, times and blanks; `…` stands for anything,
on a line of its own for any lines.

By hand, to see what the commands of a page print: python tests/support/walk.py README.md
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from support.patience import PATIENCE_S
from support.ports import steady_port

BEGIN, END = "<!-- walk-through -->", "<!-- end of walk-through -->"

_ANY_LINES = r"(?:.*\n)*?"

_FENCE = re.compile(
    r"(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_NUMBER = r"\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?"
_VARIABLE = (
    (re.compile(r"━[━╸╺]*"), "━"),
    (re.compile(r"─+"), "─"),  # a frame is longer where a figure in it is shorter
    (re.compile(r"(?<![.\d])\b[0-9a-f]{6,64}\b"), "#"),
    (re.compile(rf"{_NUMBER} (ms|s|min|h|d)\b( \d+ (s|min|h)\b)?"), "#"),
    (re.compile(_NUMBER), "#"),
    (re.compile(r"\s+"), ""),
)


@dataclass(frozen=True)
class File:
    """A file that the reader makes."""

    name: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command that the reader types, and what the page says it prints."""

    line: str
    printed: tuple[str, ...]
    background: bool


def steps(page):
    """The files and commands of a page's walk-through, in order."""
    _, _, rest = page.partition(BEGIN)
    section, end, _ = rest.partition(END)
    assert end, f"Expected {BEGIN} and {END} around the walk-through."
    found = []
    for fence in _FENCE.finditer(section):
        mark = fence["mark"] or ""
        if mark.startswith("file: "):
            found.append(File(mark.removeprefix("file: "), fence["body"]))
        elif fence["language"] == "console":
            found += _commands(fence["body"], background=mark == "another terminal")
    return found


def _commands(body, *, background):
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        line, *printed = part.replace("\\\n", "").splitlines()
        yield Command(line, tuple(printed), background)


def missing(expected, actual, *, ended=True):
    """The first line of a page that was not printed in its place; None if all were.

    Args:
        expected: lines of the page; none of them: nothing is expected.
        actual: what was printed.
        ended: nothing else may follow.
    """
    text = "".join(f"{_normal(line)}\n" for line in actual.splitlines())
    pattern = ""
    for line in expected:
        pattern += _ANY_LINES if line.strip() == "…" else _pattern(line)
        if not re.match(pattern, text):
            return line
    return None if not ended or re.fullmatch(pattern, text) else "(the end)"


def _pattern(line):
    return re.escape(_normal(line)).replace("…", ".*") + "\n"


def _normal(line):
    for pattern, replacement in _VARIABLE:
        line = pattern.sub(replacement, line)
    return line


@dataclass
class Walk:
    """A reader who walks through a page, in a separate folder.

    Args:
        folder: where files go and commands run.
        ports: what stands for the ports of the page.
    """

    folder: Path
    ports: dict[str, str]
    _background: list[tuple[Command, subprocess.Popen, Path]] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_):
        for _, process, _ in self._background:
            os.killpg(process.pid, signal.SIGTERM)
        for _, process, _ in self._background:
            process.wait(PATIENCE_S)

    def take(self, step):
        """Do one step; returns what it printed.

        Raises:
            AssertionError: it failed, or printed something else than the page says.
        """
        if isinstance(step, File):
            (self.folder / step.name).write_text(step.text)
            return ""
        if step.background:
            return self._start(step)
        self._settle()
        done = subprocess.run(**self._how(step), capture_output=True, text=True, check=False)
        printed = done.stdout + done.stderr
        assert done.returncode == 0, f"{step.line}: exit code {done.returncode}\n{printed}"
        self._compare(step, printed)
        return printed

    def _start(self, step):
        log = self.folder / f"terminal-{len(self._background)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                **self._how(step), stdout=out, stderr=out, start_new_session=True
            )
        self._background.append((step, process, log))
        return ""

    def _how(self, step):
        # All at once: a port may contain another port's digits.
        pages = rf"\b({'|'.join(self.ports)})\b"
        line = re.sub(pages, lambda found: self.ports[found[0]], step.line)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "COLUMNS": "100", "PYTHONUNBUFFERED": "1"}
        return {"args": line, "shell": True, "cwd": self.folder, "env": environment}

    def _settle(self):
        """Wait for the pending output of background commands."""
        for step, process, log in self._background:
            deadline = time.monotonic() + PATIENCE_S
            while missing(step.printed, log.read_text(), ended=False) is not None:
                if process.poll() is not None or time.monotonic() > deadline:
                    self._compare(step, log.read_text())
                time.sleep(0.05)

    def _compare(self, step, printed):
        line = missing(step.printed, printed, ended=not step.background)
        assert line is None, f"{step.line}: expected\n{line}\nin\n{printed}"

    def logs(self):
        """What the background's commands printed, by command."""
        return {step.line: log.read_text() for step, _, log in self._background}


def free_ports(wanted):
    """Each port of the page with a free one."""
    return {port: str(steady_port()) for port in wanted}


def main():
    """Walk through a page and show what its commands print."""
    page = Path(sys.argv[1]).read_text()
    with tempfile.TemporaryDirectory() as folder, Walk(Path(folder), {}) as walk:
        for step in steps(page):
            if isinstance(step, Command):
                print(f"$ {step.line}")
            print(walk.take(step), end="")
        for line, text in walk.logs().items():
            print(f"$ {line}\n{text}")


if __name__ == "__main__":
    main()
