"""A server, a device behind a bad link, and one behind a good link, in namespaces."""

from support.network import NAME, Network
from support.stage import Stage

NAMES = ("far", "near")


class Field:
    """A server in the hub, a device behind a bad link and one behind a good one.

    Args:
        directory: empty; everything goes there.
        seed: of what is lost.
        fast: prefix of every command.
        reconnect_s: longest wait of a device between two attempts to connect.
        ping_s: silence after which a device tests its connection; the server waits 10 s longer.
    """

    def __init__(self, directory, seed=0, *, fast=(), reconnect_s=0.5, ping_s=140.0):
        self.network = Network(2, seed)
        self.directory = directory
        self.ping_s = ping_s
        self.fast = list(fast)
        self.reconnect_s = reconnect_s

    def __enter__(self):
        self.network.__enter__()
        try:
            self.stage = Stage(
                self.directory,
                NAMES,
                host="0.0.0.0",
                before=[*self.network.within(0), *self.fast],
                names=("localhost", NAME),
                ping_s=self.ping_s + 10.0,
            )
            for name in NAMES:
                address = f"{NAME}:{self.stage.port}"
                self.stage.point(name, address, reconnect_s=self.reconnect_s, ping_s=self.ping_s)
            self.stage.__enter__()
            for name in NAMES:
                self.start(name)
            self.stage.online(2)
        except BaseException:
            self.network.__exit__()
            raise
        return self

    def __exit__(self, *error):
        try:
            self.stage.__exit__(*error)
        finally:
            self.network.__exit__()

    def start(self, name):
        within = self.network.within(1 + NAMES.index(name))
        self.stage.start(name, before=[*within, *self.fast])

    def link(self, **settings):
        """Change the bad link."""
        return self.network.link(1, **settings)
