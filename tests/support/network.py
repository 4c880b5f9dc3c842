"""Network namespaces for a server and devices, joined by the router beside this file."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path

from support.patience import PATIENCE_S

NAME = "fl.test"
"""What devices call the server; each namespace has a hosts file of its own."""
_numbers = count()


def missing():
    """Why there can be no namespaces here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "network namespaces need iproute2"
    if not Path("/dev/net/tun").exists():
        return "the router needs /dev/net/tun"
    probe = ["unshare", "--net", "--mount", "true"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        return "network namespaces are not allowed here"
    return ""


class Network:
    """A hub and devices around it: 10.77.0.1 and 10.77.N.1.

    Args:
        devices: how many.
        seed: of what is lost.
    """

    def __init__(self, devices, seed=0):
        stem = f"fl{os.getpid()}x{next(_numbers)}"
        self.names = [f"{stem}n{side}" for side in range(devices + 1)]
        self.seed = seed
        self._router = None

    def __enter__(self):
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self._router is not None:
            self._router.stdin.close()
            self._router.wait(PATIENCE_S)
            self._router.stdout.close()
        for name in self.names:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)
        with suppress(OSError):
            Path("/etc/netns").rmdir()

    def _build(self):
        for name in self.names:
            _ip("netns", "add", name)
            Path(f"/etc/netns/{name}").mkdir(parents=True)
        script = Path(__file__).with_name("router.py")
        self._router = subprocess.Popen(
            [sys.executable, str(script), str(self.seed), *self.names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._router.stdout.readline() == "{}\n", "the router does not start"
        for side, name in enumerate(self.names):
            self.hosts(side, "10.77.0.1")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", "fl0", "up")
            self.move(side, f"10.77.{side}.1")

    def within(self, side):
        """The command prefix that runs a command in a namespace; 0 is the hub."""
        return ["ip", "netns", "exec", self.names[side]]

    def hosts(self, side, address):
        """Set the addresses of the server's name in a namespace."""
        self.write_hosts(side, f"127.0.0.1 localhost\n{address} {NAME}\n")

    def write_hosts(self, side, text):
        """Replace a namespace's hosts file."""
        Path(f"/etc/netns/{self.names[side]}/hosts").write_text(text)

    def move(self, side, address):
        """Replace all addresses of a namespace by this one."""
        name = self.names[side]
        _ip("-n", name, "addr", "flush", "dev", "fl0")  # removes the routes too
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "fl0", "noprefixroute")
        _ip("-n", name, "route", "replace", "default", "dev", "fl0")

    def link(self, device, **settings):
        """Change a device's link (see router.py); returns its counters."""
        self._router.stdin.write(json.dumps({"link": device, **settings}) + "\n")
        self._router.stdin.flush()
        return json.loads(self._router.stdout.readline())

    def limit(self, side, rate="1mbit"):
        """Limit the rate of packets out of a namespace; "" removes the limit."""
        command = ["tc", "-n", self.names[side], "qdisc"]
        if not rate:
            subprocess.run([*command, "del", "dev", "fl0", "root"], check=True)
            return
        shape = ["tbf", "rate", rate, "burst", "16kb", "latency", "300ms"]
        subprocess.run([*command, "add", "dev", "fl0", "root", *shape], check=True)


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)
