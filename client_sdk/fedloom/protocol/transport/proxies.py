"""The proxy that gRPC uses, from the environment; other connections here are direct.

Source: gRPC's doc/environment_variables.md: the first that is set of `grpc_proxy`, `https_proxy`
and `http_proxy` (in small letters), unless `no_grpc_proxy` or else `no_proxy` has the host.
"""

import ipaddress
import os
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

_PROXY = ("grpc_proxy", "https_proxy", "http_proxy")
_NONE = ("no_grpc_proxy", "no_proxy")


def proxy_for(host: str, environment: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """The variable that names a proxy for a host, and the proxy without its password; else None.

    >>> proxy_for("fl.example.org", {"http_proxy": "http://me:secret@proxy:3128"})
    ('http_proxy', 'proxy:3128')
    >>> proxy_for("fl.example.org", {"http_proxy": "http://proxy:3128", "no_proxy": ".example.org"})
    """
    name = next((name for name in _PROXY if environment.get(name)), None)
    if name is None:
        return None
    without = next((environment[each] for each in _NONE if environment.get(each)), "")
    if any(_covers(entry.strip(), host) for entry in without.split(",") if entry.strip()):
        return None
    return name, urlsplit(environment[name]).netloc.rpartition("@")[2] or environment[name]


def _covers(entry: str, host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry)
    return host.lower().endswith(entry.lower())


def proxy_hint(address: str) -> str:
    """A hint for an unreachable server if a proxy may be the cause; else ""."""
    host = address.rpartition(":")[0].strip("[]")
    found = proxy_for(host)
    if found is None:
        return ""
    name, proxy = found
    return (
        f" {name} sends this connection through the proxy {proxy}: set no_proxy={host} if the "
        "server is reachable without it."
    )
