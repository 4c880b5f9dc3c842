"""Whose updates a site's sum has: a tree of sites and devices, if the site names them.

A site decides whether its parent learns names, or only how many devices there are. Nothing but what
operators see depends on the names: a parent cannot check them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.updates.header import MAX_NAME
from fedloom.protocol.v1 import fleet_pb2

Tree: TypeAlias = list[dict[str, Any]]
"""Members, each `{"name": ..., "devices": n, "members": Tree}`; of a device 1 and no members."""

MAX_DEPTH: Final = 8
"""Most levels of sites below a sum."""
MAX_BYTES: Final = 32 << 10
"""Longest list of members, encoded; of a longer one a site sends the number of devices alone."""


def member(name: str, devices: int = 1, members: Tree | None = None) -> dict[str, Any]:
    """A member of a tree: a device, or a site with its own members if it names them."""
    return {"name": name, "devices": devices, "members": members or []}


def write_members(site: fleet_pb2.SiteSum, tree: Tree) -> None:
    """Name the members of a sum, unless their list is too long."""
    site.members.extend(map(_message, tree))
    if sum(each.ByteSize() for each in site.members) > MAX_BYTES:
        del site.members[:]


def _message(each: dict[str, Any]) -> fleet_pb2.SiteMember:
    members = map(_message, each["members"])
    return fleet_pb2.SiteMember(name=each["name"], devices=each["devices"], members=members)


def read_members(site: fleet_pb2.SiteSum) -> Tree | None:
    """The members of a sum; None if the site does not name them.

    Raises:
        Refusal: MALFORMED, they are not those of so many devices.
    """
    if not site.members:
        return None
    return _read(site.members, site.devices, MAX_DEPTH)


def _read(messages: Sequence[fleet_pb2.SiteMember], devices: int, depth: int) -> Tree:
    if sum(each.devices for each in messages) != devices or not depth:
        raise Refusal(
            Code.MALFORMED,
            f"Expected the members of {devices} devices, at most {MAX_DEPTH} levels of them.",
        )
    names = [each.name for each in messages]
    if len(set(names)) < len(names) or not all(map(_is_name, names)):
        raise Refusal(
            Code.MALFORMED,
            f"Expected members by different printable names of 1 to {MAX_NAME} characters.",
        )
    return [
        member(m.name, m.devices, _read(m.members, m.devices, depth - 1) if m.members else None)
        for m in messages
    ]


def _is_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME and name.isprintable()


def devices_in(tree: Iterable[dict[str, Any]], path: str = "") -> Iterator[tuple[str, int]]:
    """The devices of a tree by path, as ("ward/seven", 1); of an unnamed site their number.

    >>> list(devices_in([member("ward", 2, [member("six"), member("seven")]), member("lab", 9)]))
    [('ward/six', 1), ('ward/seven', 1), ('lab', 9)]
    """
    for each in tree:
        name = f"{path}{each['name']}"
        if each["members"]:
            yield from devices_in(each["members"], f"{name}/")
        else:
            yield name, each["devices"]
