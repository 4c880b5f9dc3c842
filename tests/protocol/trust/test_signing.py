"""Signatures: what they cover, which keys are trusted, and how trust moves between keys."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.protocol.errors import Code, IntegrityError, Refusal
from fedloom.protocol.trust.signing import (
    MAX_CHAIN,
    NONCE_BYTES,
    Addressee,
    Signer,
    VerifiedOffer,
    Verifier,
    open_offer,
    signed_offer,
    to_sign,
)
from fedloom.protocol.v1 import fleet_pb2, signing_pb2

ME = Addressee("ward", "calm-heron-27", bytes(NONCE_BYTES))
TASK = fleet_pb2.Task(
    key=fleet_pb2.TaskKey(run="digits-0a1b2c", round=3),
    kind=fleet_pb2.TASK_KIND_TRAIN,
    model=fleet_pb2.ModelRef(digest="ab" * 32, size_bytes=512),
    privacy=fleet_pb2.Privacy(clip=1.0),
    deadline_s=600.0,
)


def refused(call, *arguments):
    """The code with which a call is refused."""
    with pytest.raises(Refusal) as caught:
        call(*arguments)
    return caught.value.code


def test_a_signature_verifies_with_its_key_only():
    signer = Signer.new()
    signature = signer.sign("model", b"payload")
    Verifier({signer.public}).check("model", b"payload", signature)
    stranger = Verifier({Signer.new().public})
    assert refused(stranger.check, "model", b"payload", signature) is Code.BAD_SIGNATURE
    assert refused(Verifier(()).check, "model", b"payload", signature) is Code.BAD_SIGNATURE


@given(st.binary(max_size=64), st.integers(0, 7), st.data())
def test_no_bit_of_payload_or_signature_can_change(payload, bit, data):
    signer = Signer(bytes(32))
    signature = signing_pb2.Signature.FromString(signer.sign("task", payload))
    place = data.draw(st.integers(0, len(payload) + 63))
    flipped = bytearray(payload + signature.signature)
    flipped[place] ^= 1 << bit
    payload, signature.signature = bytes(flipped[: len(payload)]), bytes(flipped[len(payload) :])
    check = Verifier({signer.public}).check
    assert refused(check, "task", payload, signature.SerializeToString()) is Code.BAD_SIGNATURE


@given(st.binary(max_size=64))
def test_garbage_is_refused_as_a_signature(garbage):
    """The refusal is typed."""
    check = Verifier({Signer(bytes(32)).public}).check
    assert refused(check, "task", b"", garbage) is Code.BAD_SIGNATURE


def test_a_signature_is_bound_to_its_purpose():
    """A purpose cannot extend into the payload."""
    signer = Signer.new()
    check = Verifier({signer.public}).check
    signature = signer.sign("model", b"x")
    assert refused(check, "task", b"x", signature) is Code.BAD_SIGNATURE
    for purpose in ("", "Task", "a\0b", "a" * 65, "model\0x"):
        with pytest.raises(ValueError, match="purpose"):
            to_sign(purpose, b"")


def test_trust_follows_a_chain_and_drops_the_older_keys():
    """After two missed rotations; the first key is no longer trusted."""
    first = Signer.new()
    third = first.successor().successor()
    verifier = Verifier({first.public})
    verifier.check("task", b"x", third.sign("task", b"x"))
    assert verifier.keys == {third.public}
    assert refused(verifier.check, "task", b"x", first.sign("task", b"x")) is Code.BAD_SIGNATURE


def test_a_chain_without_a_trusted_key_is_refused():
    """Forged endorsements, or under another key's name."""
    first, thief = Signer.new(), Signer.new()
    verifier = Verifier({first.public})
    own = thief.successor()
    word = own.chain[0]
    renamed = signing_pb2.Endorsement(by=first.public, key=own.public, signature=word.signature)
    backwards = [*first.successor().chain, renamed]
    for chain in ([], own.chain, [renamed], backwards, [word] * (MAX_CHAIN + 1)):
        signature = own.signature("task", b"x")
        del signature.chain[:]
        signature.chain.extend(chain)
        assert refused(verifier.check, "task", b"x", signature) is Code.BAD_SIGNATURE
        assert not verifier.follow(own.public, chain)
    assert verifier.keys == {first.public}


def test_an_endorsed_key_that_did_not_sign_gains_nothing():
    """Trust moves when a signature of the new key is seen."""
    first = Signer.new()
    second = first.successor()
    signature = second.signature("task", b"x")
    signature.signature = bytes(64)
    verifier = Verifier({first.public})
    assert refused(verifier.check, "task", b"x", signature) is Code.BAD_SIGNATURE
    assert verifier.keys == {first.public}


def test_renewal_moves_trust_only_along_a_chain():
    """With a renewed certificate."""
    first = Signer.new()
    second = first.successor()
    verifier = Verifier({first.public})
    assert not verifier.follow(second.public, ())
    assert verifier.follow(second.public, second.chain)
    assert verifier.keys == {second.public}


def test_a_long_history_keeps_its_newest_part():
    """Signatures stay short; a client that missed more enrols again."""
    signer = Signer(bytes(32))
    for number in range(MAX_CHAIN + 3):
        signer = signer.successor(number.to_bytes(32, "big"))
    assert len(signer.chain) == MAX_CHAIN
    assert signer.chain[-1].key == signer.public


def test_an_offer_contains_its_task():
    """For its addressee."""
    signer = Signer.new()
    offer = signed_offer(signer, ME, TASK, 7)
    assert open_offer(Verifier({signer.public}), ME, offer) == VerifiedOffer(TASK, 7)


@pytest.mark.parametrize(
    "other",
    [Addressee("ward", "swift-otter-5", ME.nonce), Addressee("other", "calm-heron-27", ME.nonce)],
)
def test_an_offer_for_another_client_is_refused(other):
    """Also for a client of the same name in another federation."""
    signer = Signer.new()
    offer = signed_offer(signer, other, TASK, 7)
    check = Verifier({signer.public})
    assert refused(open_offer, check, ME, offer) is Code.WRONG_IDENTITY


@pytest.mark.parametrize(
    "nonce",
    [b"", bytes(NONCE_BYTES - 1), bytes(NONCE_BYTES - 1) + b"1"],
    ids=["none", "short", "other"],
)
def test_an_offer_for_another_connection_is_refused(nonce):
    """Also one that was signed for none, by a server of version 2."""
    signer = Signer.new()
    offer = signed_offer(signer, replace(ME, nonce=nonce), TASK, 7)
    assert refused(open_offer, Verifier({signer.public}), ME, offer) is Code.STALE_ROUND


def test_every_field_of_a_task_is_bound():
    """A weaker clip, more time or another round invalidates the signature."""
    signer = Signer.new()
    verifier = Verifier({signer.public})
    changes = [
        lambda task: task.ClearField("privacy"),
        lambda task: setattr(task, "deadline_s", 1e9),
        lambda task: setattr(task.key, "round", 4),
        lambda task: setattr(task.model, "digest", "cd" * 32),
        lambda task: setattr(task, "run_name", "other"),
    ]
    for change in changes:
        offer = signed_offer(signer, ME, TASK, 7)
        statement = fleet_pb2.OfferStatement.FromString(offer.statement)
        task = fleet_pb2.Task.FromString(statement.task)
        change(task)
        statement.task = task.SerializeToString()
        offer.statement = statement.SerializeToString()
        offer.task.CopyFrom(task.key)
        assert refused(open_offer, verifier, ME, offer) is Code.BAD_SIGNATURE


def test_the_unsigned_name_must_equal_the_signed_one():
    """Otherwise it could misdirect a reply."""
    signer = Signer.new()
    offer = signed_offer(signer, ME, TASK, 7)
    offer.task.round = 9
    assert refused(open_offer, Verifier({signer.public}), ME, offer) is Code.MALFORMED


@pytest.mark.parametrize("garbage", [b"\xff", fleet_pb2.OfferStatement(task=b"\xff")])
def test_signed_garbage_is_malformed(garbage):
    signer = Signer.new()
    statement = garbage if isinstance(garbage, bytes) else garbage.SerializeToString()
    offer = fleet_pb2.SignedOffer(
        statement=statement, signature=signer.signature("task", statement)
    )
    assert refused(open_offer, Verifier({signer.public}), ME, offer) is Code.MALFORMED


def test_a_key_of_another_length_is_refused():
    with pytest.raises(IntegrityError, match="32 bytes"):
        Signer(b"short")
