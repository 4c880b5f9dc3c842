"""Adverts of ready members: own, fresh, drawn once."""

from dataclasses import replace

import pytest

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking import Advert, draw_sessions, width_class
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.rounds.masking.adverts import ReadyList, ReadyMembers
from fedloom.strategies import Slice
from fedloom.strategies.partial_work import PartialWork
from support.mask_members import identify, member, terms

NAMES = tuple("abcdefg")


def ready(names=NAMES, **changed):
    """Members that are ready, and their collected adverts."""
    members = {name: member(name, terms(**changed)) for name in names}
    found = ReadyMembers(terms(**changed), identify)
    for name, each in members.items():
        found.add(found.verify(each.advert.to_bytes(), name))
    return members, found


def refused(call, *args):
    with pytest.raises(Refusal) as refusal:
        call(*args)
    return refusal.value.code


def test_a_draw_is_that_of_the_devices():
    """From the same names and nonces, in sessions of at most `group`."""
    members, found = ready(group=4)
    nonces = {name: each.advert.nonce for name, each in members.items()}
    drawn = found.divide("", NAMES)
    assert drawn == draw_sessions(terms(group=4).pid, "", nonces, 4)
    assert sorted(map(len, drawn)) == [3, 4]


def test_an_advert_of_another_client_try_or_class_is_refused():
    """The server checks what devices would refuse the whole list for."""
    members, found = ready()
    raw = members["a"].advert.to_bytes()
    assert refused(found.verify, raw, "b") is Code.WRONG_IDENTITY
    assert refused(found.verify, member("a", terms(round=4)).advert.to_bytes(), "a") is (
        Code.STALE_ROUND
    )
    half = member("a", terms(), coverage="0.5").advert.to_bytes()
    assert refused(found.verify, half, "a") is Code.MASKING_REFUSED
    assert refused(found.verify, raw[:-1], "a") is Code.MALFORMED
    assert refused(found.verify, raw[:300] + b"\x00" + raw[301:], "a") in {
        Code.MALFORMED, Code.BAD_SIGNATURE, Code.WRONG_IDENTITY,
    }  # fmt: skip


def test_a_member_has_the_class_of_its_name():
    """Of its width, with slices; of the whole width without any."""
    asked = {"widths": PartialWork(widths=[0.5, 1.0])}
    width, found = terms(**asked).width, ReadyMembers(terms(**asked), identify)
    slices = {("delta", "w"): Slice(((0, 2),))}
    for name in NAMES:
        of = width(name)
        right = [width_class(of, {}), *([width_class(of, slices)] if of < 1 else [])]
        wrong = ["", f"{of!r}", width_class(1.5 - of, {}), f" {right[0]}"]
        wrong += [width_class(of, slices), f"{right[0]}0"] if of == 1 else []
        for coverage in right:
            raw = member(name, terms(**asked), coverage=coverage).advert.to_bytes()
            assert found.verify(raw, name).advert.coverage == coverage
        for coverage in wrong:
            raw = member(name, terms(**asked), coverage=coverage).advert.to_bytes()
            assert refused(found.verify, raw, name) is Code.MASKING_REFUSED
    assert len({width(name) for name in NAMES}) == 2


def test_keys_of_another_member_are_refused_and_own_new_ones_are_not():
    """A copied key would end the session of everybody."""
    members, found = ready()
    stolen = member("thief", terms())
    theirs = members["c"].advert
    copy = Advert(**{
        **{name: getattr(stolen.advert, name) for name in Advert.__slots__},
        "pair_key": theirs.pair_key,
    })  # fmt: skip
    verified = type(found.verify(theirs.to_bytes(), "c"))(advert=copy, key=None)
    assert refused(found.add, verified) is Code.MALFORMED
    again = member("c", terms()).advert
    found.add(found.verify(again.to_bytes(), "c"))
    found.divide("", NAMES)
    assert found.is_drawn("c", again.to_bytes())
    assert not found.is_drawn("c", theirs.to_bytes())


def test_another_clients_certificate_with_the_same_key_is_refused():
    """Devices would refuse the list of everybody."""
    members, found = ready()
    theirs = found.verify(members["c"].advert.to_bytes(), "c")
    thief = found.verify(member("thief", terms()).advert.to_bytes(), "thief")
    assert refused(found.add, replace(thief, key=theirs.key)) is Code.MALFORMED
    found.add(thief)


def test_a_draw_keeps_its_adverts_and_a_restart_has_the_same():
    """What comes later changes nothing; stored adverts give the same list and members."""
    _, found = ready()
    found.divide("", NAMES)
    drawn = found.drawn(NAMES)
    found.add(found.verify(member("a", terms()).advert.to_bytes(), "a"))
    assert found.drawn(NAMES) == drawn
    assert not found.is_drawn("x", b"")
    list_ = ReadyList.of(drawn)
    assert list_ == ReadyList.of(reversed(drawn))
    raw = fleet_pb2.ReadyList.FromString(list_.content).adverts
    assert [Advert.from_bytes(each).name for each in raw] == list(NAMES)
    assert list_.ref.size_bytes == len(list_.content)
