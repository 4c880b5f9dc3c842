"""The console's URL, and the checks that a request comes from its own pages.

A page of another site can make a browser send requests here, and can point its own name to this
server's address (DNS rebinding). So the Host of a request must be a known name or an IP address,
which DNS cannot change, and the Origin of a request that changes something must match it.
"""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from fedloom.server.config import ServerConfig, split_address

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:\d{1,5})?")
"""A name or an address, and optionally a port."""

_ALWAYS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """How browsers reach a console.

    Attributes:
        url: without a path; empty if it does not listen.
        hosts: names allowed in the Host header, lower case.
        secure: whether browsers use TLS.
        behind_proxy: whether addresses forwarded by a reverse proxy on this machine are trusted;
            not those of a proxy that passes TLS on, which cannot add a header.
    """

    url: str = ""
    hosts: frozenset[str] = frozenset(_ALWAYS)
    secure: bool = False
    behind_proxy: bool = False

    @property
    def cookie(self) -> str:
        """Name of the session's cookie.

        With TLS, the prefix restricts it to this host (RFC 6265bis). Without, it contains the port:
        cookies ignore ports, and two servers on one machine must not log each other out.
        """
        if self.secure:
            return "__Host-fedloom"
        return f"fedloom-{urlsplit(self.url).port or 80}"

    def knows(self, host: str) -> bool:
        """Whether this Host header is allowed."""
        if not _HOST.fullmatch(host):
            return False
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        return name is not None and (name.lower().rstrip(".") in self.hosts or _is_address(name))

    def is_own(self, origin: str, host: str) -> bool:
        """Whether this Origin header is that of the console's pages, given the Host header."""
        scheme, _, rest = origin.partition("://")
        own = rest.lower() == host.lower() or origin == self.url
        return own and scheme == ("https" if self.secure else "http")


def make_site(config: ServerConfig, port: int, *, tls: bool) -> Site:
    """The site of a console that listens on `port`, by the server's settings."""
    host = split_address(config.console, "console")[0] if ":" in config.console else _ALWAYS[1]
    given = config.console_url if config.public is None else config.public.console
    public = urlsplit(given)
    names = {*_ALWAYS, *config.certificate_names, host, public.hostname or host}
    shown = host
    if host in ("0.0.0.0", "::", "*"):  # noqa: S104 - compared, not bound
        shown = next((name for name in config.names if name not in _ALWAYS), config.names[0])
    shown = f"[{shown}]" if ":" in shown else shown
    own = f"{'https' if tls else 'http'}://{shown}:{port}"
    return Site(
        url=given.rstrip("/") or own,
        hosts=frozenset(name.lower() for name in names),
        secure=tls or public.scheme == "https",
        behind_proxy=bool(config.console_url),
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
