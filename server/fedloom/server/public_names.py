"""The names of a server whose ports are one: a proxy passes TLS on by the name that is asked for.

`public_name` in `server.toml` is the fleet's name; the two others follow from it. The certificate
holds all three, and what devices and operators are told has them, with the proxy's port.
deploy/haproxy/haproxy.cfg is such a proxy (docs/one-door.md).

Source: RFC 6066, section 3 (server name indication).
"""

import re
from dataclasses import dataclass
from typing import Self

from fedloom.protocol.errors import UsageError

PORT = 443

ENROLMENT, CONSOLE = "enroll", "console"
"""First labels of the names beside the fleet's."""

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NUMBERS = re.compile(r"[0-9.]+")
_MAX_NAME = 253 - len(CONSOLE) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicNames:
    """The three names of a server and the port of its proxy.

    Attributes:
        name: the fleet's.
        port: of the proxy.
    """

    name: str
    port: int = PORT

    @classmethod
    def parse(cls, text: str) -> Self:
        """The names that follow from `NAME` or `NAME:PORT`.

        Raises:
            UsageError: it is no host name that a TLS client could ask for.

        >>> PublicNames.parse("fl.example.org").hosts
        ('fl.example.org', 'enroll.fl.example.org', 'console.fl.example.org')
        """
        name, colon, digits = text.lower().partition(":")
        is_port = digits.isascii() and digits.isdigit() and 0 < int(digits) <= 65535
        is_name = _NAME.fullmatch(name) and not _NUMBERS.fullmatch(name)
        if not is_name or len(name) > _MAX_NAME or (colon and not is_port):
            raise UsageError(
                "Expected a public name as a host name of letters, digits, hyphens and dots, such "
                f"as fl.example.org, or as NAME:PORT if the proxy's port is not {PORT}, got "
                f"{text!r}. An address does not do: the proxy tells the fleet, the enrolment and "
                "the console apart by their names."
            )
        return cls(name=name, port=int(digits or PORT))

    @property
    def hosts(self) -> tuple[str, str, str]:
        """The names of the fleet, of enrolment and of the console."""
        return self.name, f"{ENROLMENT}.{self.name}", f"{CONSOLE}.{self.name}"

    @property
    def fleet(self) -> str:
        """host:port for enrolled clients."""
        return f"{self.hosts[0]}:{self.port}"

    @property
    def enrolment(self) -> str:
        """host:port for devices with a token."""
        return f"{self.hosts[1]}:{self.port}"

    @property
    def console(self) -> str:
        """URL for operators."""
        return f"https://{self.hosts[2]}" + (f":{self.port}" if self.port != PORT else "")
