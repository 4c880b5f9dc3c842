"""A small router in user space: IP packets between namespaces are lost, delayed or dropped.

The kernels of many machines have no netem; a TUN device in each namespace and this process between
them need nothing but root. Usage: router.py SEED NAMESPACE [NAMESPACE ...]. The first namespace is
the hub (10.77.0.0/24), the others are devices (10.77.1.0/24, ...), each with a link of its own.

Commands come as JSON lines on standard input, each is answered by a line with the counters:
    {"link": 1, "loss": 0.05, "delay_s": 0.1, "jitter_s": 0.02, "cut": false}
Delay is one way; jitter also reorders. A cut link silently drops everything.
"""

import ctypes
import fcntl
import heapq
import json
import os
import random
import selectors
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

DEVICE = "fl0"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
PACKET_BYTES = 65536
BURST = 64
"""Packets read from one side before the other has its turn."""


@dataclass
class Link:
    """The link between the hub and one device."""

    loss: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    cut: bool = False
    passed: dict = field(default_factory=lambda: {"up": 0, "down": 0})
    lost: int = 0


def tun(namespace):
    """A TUN device in a namespace."""
    with Path(f"/run/netns/{namespace}").open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI)
    fcntl.ioctl(handle, TUNSETIFF, request)
    return handle


class Router:
    """Moves packets between TUN devices."""

    def __init__(self, seed, namespaces):
        self.rng = random.Random(seed)
        self.handles = [tun(namespace) for namespace in namespaces]
        self.links = {i: Link() for i in range(1, len(namespaces))}
        self.late = []
        self.count = 0

    def run(self):
        """Route until standard input ends."""
        selector = selectors.DefaultSelector()
        for side, handle in enumerate(self.handles):
            selector.register(handle, selectors.EVENT_READ, side)
        selector.register(sys.stdin, selectors.EVENT_READ, -1)
        print("{}", flush=True)
        while True:
            wait_s = max(0.0, self.late[0][0] - time.monotonic()) if self.late else None
            for key, _ in selector.select(wait_s):
                if key.data >= 0:
                    self.read(key.data)
                elif not self.command(sys.stdin.readline()):
                    return
            now = time.monotonic()
            while self.late and self.late[0][0] <= now:
                _, _, handle, packet = heapq.heappop(self.late)
                write(handle, packet)

    def read(self, side):
        for _ in range(BURST):
            try:
                packet = os.read(self.handles[side], PACKET_BYTES)
            except BlockingIOError:
                return
            to = packet[18] if len(packet) > 19 and packet[0] >> 4 == 4 else -1
            if to == side or not 0 <= to < len(self.handles):
                continue
            link = self.links[max(side, to)]
            if link.cut or self.rng.random() < link.loss:
                link.lost += 1
                continue
            link.passed["down" if side == 0 else "up"] += len(packet)
            delay_s = link.delay_s + self.rng.random() * link.jitter_s
            if not delay_s:
                write(self.handles[to], packet)
                continue
            self.count += 1
            at = time.monotonic() + delay_s
            heapq.heappush(self.late, (at, self.count, self.handles[to], packet))

    def command(self, line):
        if not line:
            return False
        values = json.loads(line)
        link = self.links[values.pop("link")]
        for name, value in values.items():
            setattr(link, name, value)
        print(json.dumps({"passed": link.passed, "lost": link.lost}), flush=True)
        return True


def write(handle, packet):
    """Write a packet to a namespace; a full queue drops it, like a router's."""
    with suppress(OSError):
        os.write(handle, packet)


if __name__ == "__main__":
    Router(int(sys.argv[1]), sys.argv[2:]).run()
