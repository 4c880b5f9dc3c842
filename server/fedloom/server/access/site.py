"""Where browsers reach the console, and which requests could come from its own pages.

A page elsewhere can make a browser send requests here, and can even give its own name our address
(DNS rebinding). So a request names a host that we know, or an address, which no name server can
turn into ours; and one that changes something says by its Origin that it comes from that host.
"""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from fedloom.server.config import ServerConfig, split_address

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:\d{1,5})?")
"""A name or an address, and a port: of anything else no redirect is made."""

_ALWAYS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A console's place.

    Attributes:
        url: where operators reach it, without a path; empty where it does not listen.
        hosts: names that requests may call it by, lower case.
        secure: whether browsers speak TLS to it.
        behind_proxy: whether a reverse proxy on this machine is believed about addresses.
    """

    url: str = ""
    hosts: frozenset[str] = frozenset(_ALWAYS)
    secure: bool = False
    behind_proxy: bool = False

    @property
    def cookie(self) -> str:
        """Name of the session's cookie.

        With TLS the prefix makes browsers keep it to this host (RFC 6265bis). Without, the port is
        in it, as cookies know no ports and two servers on one machine must not log each other out.
        """
        if self.secure:
            return "__Host-fedloom"
        return f"fedloom-{urlsplit(self.url).port or 80}"

    def knows(self, host: str) -> bool:
        """May a request carry this Host header?"""
        if not _HOST.fullmatch(host):
            return False
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        return name is not None and (name.lower().rstrip(".") in self.hosts or _is_address(name))

    def is_own(self, origin: str, host: str) -> bool:
        """Is this Origin header that of our own pages, in a request with this Host header?"""
        scheme, _, rest = origin.partition("://")
        own = rest.lower() == host.lower() or origin == self.url
        return own and scheme == ("https" if self.secure else "http")


def make_site(config: ServerConfig, port: int, *, tls: bool) -> Site:
    """The place of a console that listens on `port`, as a server's settings have it."""
    host = split_address(config.console, "console")[0] if ":" in config.console else _ALWAYS[1]
    public = urlsplit(config.console_url)
    names = {*_ALWAYS, *config.names, host, public.hostname or host}
    shown = host
    if _is_any(host):
        shown = next((name for name in config.names if name not in _ALWAYS), config.names[0])
    shown = f"[{shown}]" if ":" in shown else shown
    own = f"{'https' if tls else 'http'}://{shown}:{port}"
    return Site(
        url=config.console_url.rstrip("/") or own,
        hosts=frozenset(name.lower() for name in names),
        secure=tls or public.scheme == "https",
        behind_proxy=bool(config.console_url),
    )


def _is_any(host: str) -> bool:
    return host in ("0.0.0.0", "::", "*")  # noqa: S104 - compared, not bound


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
