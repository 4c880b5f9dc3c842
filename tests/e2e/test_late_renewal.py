"""Late renewal of an expired certificate: only with its key and within the grace period."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.transport import methods
from fedloom.protocol.trust import late_renewal
from fedloom.protocol.trust.identity import build_csr, generate_key, leaf_pem
from fedloom.protocol.v1 import enrolment_pb2
from fedloom.protocol.version import PROTOCOL_VERSIONS
from fedloom.server.ledger.audit_trail import Filter
from fedloom.server.pki.authority import Authority
from support.federation import ask

pytestmark = pytest.mark.e2e

LIFE_S = 3600.0
AN_HOUR_AGO = timedelta(hours=2)


@pytest.fixture(scope="module")
def ended(federation):
    """A client whose certificate expired an hour ago."""
    return federation.enrol("ended", ttl_s=LIFE_S, now=datetime.now(UTC) - AN_HOUR_AGO)


def request(identity, **changes):
    """The request of an honest device, with changes."""
    pem = identity.key_pem + identity.chain_pem
    csr = build_csr(generate_key())
    honest = {
        "protocol_versions": PROTOCOL_VERSIONS,
        "certificate_pem": leaf_pem(pem),
        "csr_pem": csr,
        "signature": late_renewal.sign(pem, csr),
    }
    return enrolment_pb2.LateRenewRequest(**honest | changes).SerializeToString()


def asked(runner, federation, raw):
    """The answer to a request."""

    async def asking():
        return await ask(federation.door(), methods.RENEW_LATE, raw)

    return runner.run(asking())


def test_the_key_of_an_expired_certificate_renews_it(runner, federation, ended):
    """A chain for the same name over the new key, valid from now."""
    answer = asked(runner, federation, request(ended))
    assert answer.code is None
    issued = enrolment_pb2.IssuedCertificate.FromString(answer.replies[0])
    leaf = x509.load_pem_x509_certificate(issued.chain_pem)
    assert issued.client == "ended"
    assert leaf.not_valid_after_utc > datetime.now(UTC)
    assert issued.unix_time == pytest.approx(datetime.now(UTC).timestamp(), abs=60)
    newest = federation.ledger.trail.page(Filter(who="ended"), 1)[0]
    assert newest["action"] == "client.renew"
    assert int(json.loads(newest["detail"])["serial"], 16) == leaf.serial_number


def test_refused_request_is_in_the_audit_trail(runner, federation):
    """With its reason, and without an actor, as the peer is not authenticated."""
    assert asked(runner, federation, b"\xff").code is not None
    runner.run(federation.contexts.audit_log.store())
    newest = federation.ledger.trail.page(Filter(action="client.enrol.refused"), 1)[0]
    assert newest["who"] == ""
    assert json.loads(newest["detail"])["what"] == "late renewal"


def by_another_key(federation, ended):
    other = federation.forge("ended")[0]
    csr = build_csr(generate_key())
    return {"csr_pem": csr, "signature": late_renewal.sign(other.key_pem + other.chain_pem, csr)}


def for_another_request(federation, ended):
    return {"csr_pem": build_csr(generate_key())}


def no_signature(federation, ended):
    return {"signature": b""}


def garbage(federation, ended):
    return {"certificate_pem": b"-----BEGIN CERTIFICATE-----"}


def of_another_federation(federation, ended, tmp_path):
    theirs = Authority.create(tmp_path / "theirs", "fedloom", datetime.now(UTC))
    forged, _ = federation.forge("ended", authority=theirs)
    pem, csr = forged.key_pem + forged.chain_pem, build_csr(generate_key())
    return {
        "certificate_pem": leaf_pem(pem),
        "csr_pem": csr,
        "signature": late_renewal.sign(pem, csr),
    }


@pytest.mark.parametrize("forgery", [by_another_key, for_another_request, no_signature, garbage])
def test_without_the_key_nothing_is_issued(runner, federation, ended, forgery):
    """For a wrong or missing signature, and for invalid certificates."""
    answer = asked(runner, federation, request(ended, **forgery(federation, ended)))
    assert (answer.code, answer.replies) == (Code.NO_CERTIFICATE, [])
    assert federation.refusals()[0].code == Code.NO_CERTIFICATE


def test_another_authority_of_the_same_name_is_refused(runner, federation, ended, tmp_path):
    """Its names are equal, its keys are not."""
    changes = of_another_federation(federation, ended, tmp_path)
    answer = asked(runner, federation, request(ended, **changes))
    assert (answer.code, answer.replies) == (Code.NO_CERTIFICATE, [])


def test_the_certificate_of_the_server_is_refused(runner, federation):
    """It is from our authority but names no client."""
    bundle = federation.authority.issue_server(["ended"], LIFE_S, datetime.now(UTC))
    pem, csr = bundle.key_pem + bundle.chain_pem, build_csr(generate_key())
    raw = enrolment_pb2.LateRenewRequest(
        protocol_versions=PROTOCOL_VERSIONS,
        certificate_pem=leaf_pem(pem),
        csr_pem=csr,
        signature=late_renewal.sign(pem, csr),
    ).SerializeToString()
    answer = asked(runner, federation, raw)
    assert (answer.code, answer.replies) == (Code.NO_CERTIFICATE, [])


def test_revoked_and_unknown_clients_are_refused(runner, federation):
    """Also with the right key and in time."""
    then = datetime.now(UTC) - AN_HOUR_AGO
    revoked = federation.enrol("revoked", ttl_s=LIFE_S, now=then)
    federation.ledger.revoke("revoked")
    assert asked(runner, federation, request(revoked)).code is Code.REVOKED
    unknown, _ = federation.forge("unknown", ttl_s=LIFE_S, now=then)
    assert asked(runner, federation, request(unknown)).code is Code.UNKNOWN_CLIENT


def test_a_renewal_after_the_grace_period_is_refused(runner, federation):
    """Eight days after expiry, with seven allowed."""
    old = federation.enrol("old", ttl_s=LIFE_S, now=datetime.now(UTC) - timedelta(days=8))
    answer = asked(runner, federation, request(old))
    assert (answer.code, answer.replies) == (Code.EXPIRED, [])
    assert "enrol again" in answer.message


def test_a_peer_of_another_version_gets_an_error(runner, federation, ended):
    """Neither side guesses the other's version."""
    answer = asked(runner, federation, request(ended, protocol_versions=[99]))
    assert answer.code is Code.VERSION_UNSUPPORTED


def test_certificates_of_other_authorities_are_detected(federation, ended, tmp_path):
    """By the signature of an issuing authority, whose own expiry does not matter."""
    read = federation.authority.certified(leaf_pem(ended.key_pem + ended.chain_pem))
    assert read.not_valid_after_utc < datetime.now(UTC)
    with pytest.raises(Refusal, match="foreign one"):
        federation.authority.certified(federation.authority.root_pem)
