"""Chains in adverts: to the federation's root, of its clients, valid now."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from fedloom.protocol import masking
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.trust.identity import build_csr, generate_key
from fedloom.server.pki.authority import Authority
from support.mask_members import terms

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority.create(tmp_path_factory.mktemp("pki") / "a", "tests", NOW)


def advert(authority, name="device", *, ttl_s=3600.0):
    """A client's advert under the certificate that an authority gave it."""
    key = generate_key()
    chain, peer = authority.issue_client(build_csr(key), name, ttl_s, NOW)
    member = masking.Member(
        terms(), name=name, serial=peer.serial, sign=masking.signer(key), chain=chain
    )
    return member.advert, key


def refusal(identify, sent):
    with pytest.raises(Refusal) as error:
        identify(sent)
    return error.value.code


def test_a_chain_to_the_root_gives_the_certified_key(authority):
    """Name, serial and key are those of the leaf; the root may be in the chain."""
    sent, key = advert(authority)
    identify = masking.ChainVerifier(authority.root_pem, "tests", NOW)
    found = identify(sent)
    assert (found.name, found.serial, found.key) == ("device", sent.serial, key.public_key())
    assert identify(replace(sent, chain=sent.chain + authority.root_pem)) == found
    assert masking.verify_advert(sent, terms().pid, identify).key == key.public_key()
    assert masking.certified_key(sent) == key.public_key()


def test_chains_that_do_not_prove_a_client_of_this_federation_are_refused(authority, tmp_path):
    """Another root, federation or time, a leaf alone, no certificate, a leaf as an authority."""
    sent, _ = advert(authority, ttl_s=60.0)
    identify = masking.ChainVerifier(authority.root_pem, "tests", NOW)
    other = Authority.create(tmp_path / "b", "tests", NOW)
    foreign, _ = advert(other)
    assert refusal(identify, foreign) is Code.BAD_SIGNATURE
    elsewhere = masking.ChainVerifier(authority.root_pem, "others", NOW)
    assert refusal(elsewhere, sent) is Code.WRONG_IDENTITY
    late = masking.ChainVerifier(authority.root_pem, "tests", NOW + timedelta(hours=1))
    assert refusal(late, sent) is Code.BAD_SIGNATURE
    leaf = sent.chain[: sent.chain.index(b"-----END CERTIFICATE-----") + 26]
    assert refusal(identify, replace(sent, chain=leaf)) is Code.BAD_SIGNATURE
    assert refusal(identify, replace(sent, chain=b"")) is Code.BAD_SIGNATURE
    assert refusal(identify, replace(sent, chain=b"no certificate")) is Code.BAD_SIGNATURE
    by_a_client = foreign.chain[: len(leaf)] + sent.chain
    assert refusal(identify, replace(sent, chain=by_a_client)) is Code.BAD_SIGNATURE
    with pytest.raises(Refusal):
        masking.certified_key(replace(sent, chain=b""))
