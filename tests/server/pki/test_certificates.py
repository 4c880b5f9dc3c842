"""The certificates, checked by an independent path validator."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import example, given
from hypothesis import strategies as st

from fedloom.protocol.errors import Code, Refusal, UsageError
from fedloom.protocol.trust.identity import build_csr, generate_key, seconds_until_renewal
from fedloom.server.pki import certificates
from fedloom.server.pki.authority import Authority

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
CSR = build_csr(generate_key())


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """An authority for tests that only read."""
    return Authority.create(tmp_path_factory.mktemp("state") / "pki", "demo", NOW)


def _chain(pem):
    return x509.load_pem_x509_certificates(pem)


def _policy(root_pem, now):
    (root,) = _chain(root_pem)
    return verification.PolicyBuilder().store(verification.Store([root])).time(now)


def _extension(certificate, kind):
    return certificate.extensions.get_extension_for_class(kind)


def _csr(key, subject=(), names=(), algorithm=None):
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name) for name in subject]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(attributes))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, algorithm).public_bytes(Encoding.PEM)


def test_a_clients_chain_verifies_for_clients_only(authority):
    """Its leaf is not valid for a server."""
    chain_pem, peer = authority.issue_client(CSR, "dev-1", 3600, NOW)
    leaf, *others = _chain(chain_pem)
    verified = _policy(authority.root_pem, NOW).build_client_verifier().verify(leaf, others)
    assert [name.value for name in verified.subjects] == ["spiffe://demo/client/dev-1"]
    assert len(verified.chain) == 3
    assert peer.not_after == NOW.replace(microsecond=0) + timedelta(hours=1)
    server = _policy(authority.root_pem, NOW).build_server_verifier(x509.DNSName("dev-1"))
    with pytest.raises(verification.VerificationError):
        server.verify(leaf, others)


@pytest.mark.parametrize("host", ["fl.example.org", "localhost", "127.0.0.1", "::1"])
def test_a_servers_chain_verifies_for_each_of_its_names(authority, host):
    """DNS names and both kinds of addresses; its leaf is not valid for a client."""
    names = ["FL.example.org", "localhost", "127.0.0.1", "0:0::1"]
    leaf, *others = _chain(authority.issue_server(names, 3600, NOW).chain_pem)
    policy = _policy(authority.root_pem, NOW)
    subject = x509.IPAddress(ip_address(host)) if host[-1] == "1" else x509.DNSName(host)
    assert len(policy.build_server_verifier(subject).verify(leaf, others)) == 3
    with pytest.raises(verification.VerificationError):
        policy.build_client_verifier().verify(leaf, others)


def test_the_same_chain_fails_under_another_root(authority, tmp_path):
    """Another federation of the same name."""
    other = Authority.create(tmp_path / "pki", "demo", NOW)
    leaf, *others = _chain(authority.issue_client(CSR, "dev-1", 3600, NOW)[0])
    with pytest.raises(verification.VerificationError):
        _policy(other.root_pem, NOW).build_client_verifier().verify(leaf, others)


def test_authorities_are_constrained(authority):
    (root,) = _chain(authority.root_pem)
    issuing = _chain(authority.issue_client(CSR, "dev-1", 3600, NOW)[0])[1]
    for certificate, depth, days in ((root, 1, 3652), (issuing, 0, 730)):
        constraints = _extension(certificate, x509.BasicConstraints)
        assert constraints.critical
        assert constraints.value == x509.BasicConstraints(ca=True, path_length=depth)
        usage = _extension(certificate, x509.KeyUsage)
        assert usage.critical
        assert (usage.value.key_cert_sign, usage.value.crl_sign) == (True, True)
        assert not usage.value.digital_signature
        assert isinstance(certificate.public_key().curve, ec.SECP256R1)
        assert certificate.not_valid_after_utc == NOW.replace(microsecond=0) + timedelta(days=days)
    assert root.subject == root.issuer
    root.verify_directly_issued_by(root)


def test_a_clients_leaf_has_the_expected_extensions(authority):
    """Purpose, usage, key identifiers and one name."""
    leaf, issuing = _chain(authority.issue_client(CSR, "dev-1", 3600, NOW)[0])
    assert list(_extension(leaf, x509.SubjectAlternativeName).value) == [
        x509.UniformResourceIdentifier("spiffe://demo/client/dev-1")
    ]
    purposes = _extension(leaf, x509.ExtendedKeyUsage).value
    assert list(purposes) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    usage = _extension(leaf, x509.KeyUsage).value
    others = (usage.key_cert_sign, usage.crl_sign, usage.key_agreement, usage.key_encipherment)
    assert usage.digital_signature
    assert others == (False, False, False, False)
    assert not _extension(leaf, x509.BasicConstraints).value.ca
    subject_key = _extension(issuing, x509.SubjectKeyIdentifier).value
    authority_key = _extension(leaf, x509.AuthorityKeyIdentifier).value
    assert authority_key.key_identifier == subject_key.digest
    own_key = _extension(leaf, x509.SubjectKeyIdentifier).value
    assert own_key == x509.SubjectKeyIdentifier.from_public_key(leaf.public_key())


def test_serial_numbers_are_random_and_in_40_hex_digits(authority):
    """100 certificates have 100 serials, in the format of the ledger's column and of peers."""
    serials = set()
    for _ in range(100):
        chain, peer = authority.issue_client(CSR, "dev-1", 3600, NOW)
        assert int(peer.serial, 16) == _chain(chain)[0].serial_number < 2**159
        assert len(peer.serial) == 40
        serials.add(peer.serial)
    assert len(serials) == 100
    assert max(int(serial, 16) for serial in serials) > 2**150


@given(ttl_s=st.integers(30, 10**8))
def test_certificates_tolerate_slow_clocks(authority, ttl_s):
    """They start up to 15 minutes early, but are never due for renewal at once."""
    leaf = _chain(authority.issue_client(CSR, "dev-1", ttl_s, NOW)[0])[0]
    backdated = NOW - leaf.not_valid_before_utc
    assert timedelta(seconds=min(900, ttl_s / 10)) <= backdated <= timedelta(seconds=901)
    wait = seconds_until_renewal(leaf.not_valid_before_utc, leaf.not_valid_after_utc, NOW)
    assert wait > 0.55 * min(ttl_s, 729 * 86400) - 1


def test_no_leaf_outlives_its_issuer(authority):
    leaf, issuing = _chain(authority.issue_client(CSR, "dev-1", 10 * 365 * 86400, NOW)[0])
    assert leaf.not_valid_after_utc == issuing.not_valid_after_utc


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan")])
def test_a_life_that_is_not_positive_is_refused(authority, ttl_s):
    with pytest.raises(UsageError, match="ttl_s > 0"):
        authority.issue_client(CSR, "dev-1", ttl_s, NOW)


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 65])
def test_a_client_name_that_is_not_allowed_gets_no_certificate(authority, name):
    with pytest.raises(UsageError, match="client name"):
        authority.issue_client(CSR, name, 3600, NOW)


def test_names_in_the_request_are_ignored(authority):
    """The name is that of the token."""
    names = [
        x509.UniformResourceIdentifier("spiffe://demo/client/admin"),
        x509.DNSName("fl.example.org"),
    ]
    csr = _csr(generate_key(), ["admin"], names, hashes.SHA256())
    chain, peer = authority.issue_client(csr, "dev-1", 3600, NOW)
    leaf = _chain(chain)[0]
    assert peer.client == "dev-1"
    assert b"admin" not in leaf.public_bytes(Encoding.DER)
    assert b"example" not in leaf.public_bytes(Encoding.DER)
    assert leaf.public_key() == x509.load_pem_x509_csr(csr).public_key()


@pytest.mark.parametrize(
    ("key", "algorithm", "got"),
    [
        (rsa.generate_private_key(65537, 2048), hashes.SHA256(), "RSA"),
        (ed25519.Ed25519PrivateKey.generate(), None, "Ed25519"),
        (ec.generate_private_key(ec.SECP521R1()), hashes.SHA512(), "secp521r1"),
        (ec.generate_private_key(ec.SECP384R1()), hashes.SHA384(), "secp384r1"),
        (ec.generate_private_key(ec.SECP256K1()), hashes.SHA256(), "secp256k1"),
    ],
)
def test_keys_of_other_kinds_are_refused_by_name(key, algorithm, got):
    """Some of these would fail later in gRPC's handshake, without an error message."""
    with pytest.raises(Refusal, match=rf"P-256 \(secp256r1\) key, got {got}") as caught:
        certificates.read_csr(_csr(key, algorithm=algorithm))
    assert caught.value.code is Code.BAD_CSR


@given(st.binary(max_size=300))
@example(b"")
@example(b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n")
@example(CSR.replace(b"REQUEST", b"REQUESTS"))
@example(CSR[: len(CSR) // 2])
def test_garbage_is_no_request(data):
    with pytest.raises(Refusal) as caught:
        certificates.read_csr(data)
    assert caught.value.code is Code.BAD_CSR


def test_a_request_not_signed_by_its_key_is_refused():
    """Otherwise a client could certify another's public key."""
    request = x509.load_pem_x509_csr(CSR)
    der = request.public_bytes(Encoding.DER)
    stranger = x509.load_pem_x509_csr(build_csr(generate_key()))
    forged = der.replace(
        request.public_key().public_numbers().x.to_bytes(32, "big"),
        stranger.public_key().public_numbers().x.to_bytes(32, "big"),
    ).replace(
        request.public_key().public_numbers().y.to_bytes(32, "big"),
        stranger.public_key().public_numbers().y.to_bytes(32, "big"),
    )
    pem = x509.load_der_x509_csr(forged).public_bytes(Encoding.PEM)
    with pytest.raises(Refusal, match="not signed by the key in it") as caught:
        certificates.read_csr(pem)
    assert caught.value.code is Code.BAD_CSR


def test_an_oversize_request_is_refused_before_it_is_parsed():
    with pytest.raises(Refusal, match="at most 16384 bytes, got 16385"):
        certificates.read_csr(b"x" * 16385)


@pytest.mark.parametrize(
    "name", ["", "a_b", "a b", "http://a", "a:443", "[::1]", "-a", "a..b", "ä.org", "x" * 64, "*"]
)
def test_invalid_host_names_are_refused(authority, name):
    with pytest.raises(UsageError, match="Expected a DNS name"):
        authority.issue_server(["localhost", name], 3600, NOW)


def test_a_server_needs_a_name(authority):
    with pytest.raises(UsageError, match="at least one"):
        authority.issue_server([], 3600, NOW)
