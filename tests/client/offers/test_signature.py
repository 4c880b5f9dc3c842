"""A client accepts a new signing key only if the known one endorsed it."""

from datetime import UTC, datetime

import pytest

from fedloom.client.offers.signature import Trust
from fedloom.client.owner import journal
from fedloom.client.state.store import ClientStore
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.trust.identity import Peer
from fedloom.protocol.trust.signing import NONCE_BYTES, Addressee, Signer, signed_offer
from fedloom.protocol.v1 import enrolment_pb2, fleet_pb2

NEVER = datetime(9999, 1, 1, tzinfo=UTC)


@pytest.fixture
def store(tmp_path):
    """State of a client that knows no key yet."""
    return ClientStore(tmp_path / "state")


def trust_of(store):
    """The trust of an agent that starts."""
    return Trust(store, Peer(federation="ward", client="oak", serial="01", not_after=NEVER))


def renewed(signer):
    """The message of a renewed certificate."""
    return enrolment_pb2.IssuedCertificate(signing_key=signer.public, signing_chain=signer.chain)


def test_the_first_key_is_learnt_with_a_renewed_certificate(store):
    """By a client whose enrolment is older than signatures; it is stored."""
    assert not trust_of(store).knows_key
    signer = Signer.new()
    trust_of(store).learn(renewed(signer))
    assert trust_of(store).verifier.keys == {signer.public}


def test_a_key_that_the_known_one_did_not_endorse_is_refused(store):
    """The known key is kept, also on disk, and the journal records the refusal."""
    known, other = Signer.new(), Signer.new().successor()
    store.trust(known.public)
    trust = trust_of(store)
    with pytest.raises(Refusal) as caught:
        trust.learn(renewed(other))
    assert caught.value.code is Code.BAD_SIGNATURE
    assert trust.verifier.keys == trust_of(store).verifier.keys == {known.public}
    [entry] = journal.read(store.directory)
    assert entry["event"] == "refused"
    assert entry["key"] == other.public.hex()


def test_an_endorsed_key_replaces_the_known_one(store):
    """Also after a restart; the earlier key is not accepted any more."""
    known = Signer.new()
    store.trust(known.public)
    new = known.successor()
    trust_of(store).learn(renewed(new))
    trust = trust_of(store)
    trust.check("promoted", b"statement", new.signature("promoted", b"statement"))
    with pytest.raises(Refusal):
        trust.check("promoted", b"statement", known.signature("promoted", b"statement"))


def test_an_offer_is_accepted_once_on_its_connection(store):
    """In the order of signing; a new connection begins anew, whatever the server's clock."""
    signer = Signer.new()
    store.trust(signer.public)
    trust = trust_of(store)

    def offer(nonce, issued_us):
        task = fleet_pb2.Task(key=fleet_pb2.TaskKey(run="r", round=1))
        return signed_offer(signer, Addressee("ward", "oak", nonce), task, issued_us)

    first, second = trust.begin(), trust.begin()
    assert first != second
    assert len(first) == len(second) == NONCE_BYTES
    assert trust.open(offer(second, 9)).key.round == 1
    for nonce, issued_us in ((second, 9), (second, 8), (first, 10), (b"", 10)):
        with pytest.raises(Refusal, match="old offer of round 1 of r") as caught:
            trust.open(offer(nonce, issued_us))
        assert caught.value.code is Code.STALE_ROUND
    trust.open(offer(second, 10))
    trust.open(offer(trust.begin(), 1))
