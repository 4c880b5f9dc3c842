"""The names of the devices in a site's sum: written, checked, and left out where they are many."""

import pytest

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.updates.site_members import (
    MAX_DEPTH,
    devices_in,
    member,
    read_members,
    write_members,
)
from fedloom.protocol.v1 import fleet_pb2

TREE = [member("ward", 2, [member("six"), member("seven")]), member("lab", 9), member("one")]


def site_of(devices, tree):
    site = fleet_pb2.SiteSum(devices=devices)
    write_members(site, tree)
    return site


def refused(site):
    with pytest.raises(Refusal) as caught:
        read_members(site)
    return caught.value.code


def test_a_tree_is_read_as_it_was_written():
    """Also the number of devices of a site that does not name them."""
    assert read_members(site_of(12, TREE)) == TREE
    assert list(devices_in(TREE)) == [("ward/six", 1), ("ward/seven", 1), ("lab", 9), ("one", 1)]


def test_a_site_that_names_nobody_has_no_tree():
    """None is not an empty tree: the number of devices is known all the same."""
    assert read_members(fleet_pb2.SiteSum(devices=3)) is None


@pytest.mark.parametrize("devices", [11, 13])
def test_members_are_as_many_as_the_devices(devices):
    """One more or one less is refused."""
    assert refused(site_of(devices, TREE)) is Code.MALFORMED


@pytest.mark.parametrize(
    "tree",
    [
        [member("ward", 2, [member("six")])],
        [member("one"), member("one")],
        [member(""), member("one")],
        [member("a" * 300), member("one")],
        [member("a\nb"), member("one")],
    ],
    ids=["fewer below", "twice", "no name", "long", "unprintable"],
)
def test_a_tree_that_contradicts_itself_is_refused(tree):
    """Nothing of it is shown to operators."""
    assert refused(site_of(2, tree)) is Code.MALFORMED


def test_a_tree_has_few_levels():
    """The deepest allowed is read, one more is refused."""
    tree = [member("leaf")]
    for _ in range(MAX_DEPTH - 1):
        tree = [member("site", 1, tree)]
    assert read_members(site_of(1, tree)) == tree
    assert refused(site_of(1, [member("site", 1, tree)])) is Code.MALFORMED


def test_a_long_list_is_left_out():
    """So a header stays small; the number of devices is still in it."""
    site = site_of(5000, [member(f"device-{n}") for n in range(5000)])
    assert read_members(site) is None
    assert site.devices == 5000
