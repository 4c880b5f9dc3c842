"""A server, a device behind a bad link, and one behind a good link, in namespaces."""

from support.network import NAME, Network
from support.stage import Stage

NAMES = ("far", "near")


class Field:
    """A server in the hub, a device behind a bad link and one behind a good one."""

    def __init__(self, directory, seed=0, *, fast=(), reconnect_s=0.5, **settings):
        self.network = Network(2, seed)
        self.directory = directory
        self.settings = settings
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
                **self.settings,
            )
            for name in NAMES:
                address = f"{NAME}:{self.stage.port}"
                self.stage.point(name, address, reconnect_s=self.reconnect_s)
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
