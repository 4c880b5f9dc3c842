"""Training code that does what the config of its run says, mostly harm."""

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from fedloom.client import Client


def segfault(_):
    ctypes.string_at(0)


def terminate(_):
    os.write(2, b"terminate called after throwing an instance of 'dmlc::Error'\n")
    os.abort()


def leave(_):
    print("leaving now")
    os._exit(7)


def leak(_):
    held = []
    while True:
        held.append(np.ones(4 << 20))


def ignore(_):
    while True:
        time.sleep(0.05)


def hang_in_native_code(_):
    ctypes.PyDLL(None).sleep(3600)  # it holds the interpreter's lock


def fork_and_hang(task):
    if (child := os.fork()) == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1)
    Path(task.config["begun"]).write_text(str(child))
    os.abort()


def fork_twice(task):
    """The fork returns from the training first, and must not write the update."""
    if (fork := os.fork()) > 0:
        os.waitpid(fork, 0)
        found = list(Path(task.config["outbox"]).iterdir())
        assert not found, f"the fork wrote {found}"


def scribble(_):
    """Write to every open file."""
    for number in range(3, 64):
        with suppress(OSError):
            os.write(number, b"\x05\x00\x00\x00\x14\xff\xff\xff\xff" * 20)
    time.sleep(3600)


def close_pipes(_):
    os.closerange(3, 256)
    time.sleep(3600)


def close_all(_):
    os.closerange(0, 256)


def fill_the_disk(_):
    with Path("/dev/full").open("wb", buffering=0) as file:
        file.write(bytes(1 << 20))


def flood(_):
    for number in range(20_000):
        print(f"line {number}")
    os._exit(3)


def pause(task):
    """Wait to be stopped, and keep that; when resumed, say so."""
    if (path := task.resume()) is None:
        while not task.should_stop():
            time.sleep(0.01)
        task.checkpoint(lambda file: file.write(b"a half"))
    else:
        Path(task.config["begun"]).write_bytes(path.read_bytes())


def stop_threads(_):
    sys.exit("no more")


class Misbehaving(Client):
    """Adds one to all values, unless its run's config has a `deed`; then makes the file `begun`."""

    def train(self, params, task):
        deed = task.config.get("deed", "")
        if deed:
            print(f"about to {deed}")
            Path(task.config["begun"]).touch()
            globals()[deed](task)
        new = {name: value + np.float32(1) for name, value in params.items()}
        return new, 1, {"pid": float(os.getpid())}


client = Misbehaving()
