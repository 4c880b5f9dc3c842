"""A command on a pseudo-terminal whose screen a test can read."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

import pyte

from support.patience import PATIENCE_S


class Seen:
    """A process on a separate terminal.

    Args:
        words: the command.
        size: columns and rows.
        env: variables beside those of this process.
    """

    def __init__(self, *words, size=(80, 24), env=None):
        self.master, slave = pty.openpty()
        self.screen = pyte.Screen(*size)
        self.stream = pyte.ByteStream(self.screen)
        self.received = b""
        self._resize(size)
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        environment = {**os.environ, "TERM": "xterm-256color", **(env or {})}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            words, stdin=slave, stdout=slave, stderr=slave, env=environment,
            start_new_session=True,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self._slave)

    def _resize(self, size):
        columns, rows = size
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns, rows):
        """Make the window another size."""
        self._resize((columns, rows))
        self.screen.resize(rows, columns)
        self.process.send_signal(signal.SIGWINCH)

    def send(self, keys):
        """Press keys."""
        os.write(self.master, keys.encode())

    def read(self, patience_s=0.1):
        """Read pending output."""
        while select.select([self.master], [], [], patience_s)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            if not data:
                return
            self.received += data
            self.stream.feed(data)
            patience_s = 0

    @property
    def text(self):
        """The text on the screen."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def until(self, condition, patience_s=PATIENCE_S):
        """Wait until the screen has this text or fulfils a condition."""
        wanted = condition if callable(condition) else lambda text: condition in text
        end = time.monotonic() + patience_s
        while not wanted(self.text):
            assert time.monotonic() < end, f"{condition!r} is not on the screen:\n{self.text}"
            self.read()
        return self.text

    def ended(self):
        """Wait for the end of the process; its exit code."""
        end = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < end, self.text
            self.read()
        self.read(0)
        return self.process.returncode
