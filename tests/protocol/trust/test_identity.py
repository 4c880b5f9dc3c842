"""A client certificate names exactly one client; other certificates are refused."""

import base64
import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedloom.protocol.errors import Code, IntegrityError, Refusal, UsageError
from fedloom.protocol.trust import identity

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CLIENTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
FEDERATIONS = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True)
KEY = identity.generate_key()


def _certificate(*names, serial=1):
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(x509.Name([]))
        .public_key(KEY.public_key())
        .serial_number(serial)
        .not_valid_before(NOW)
        .not_valid_after(NOW + timedelta(days=1))
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.PEM)


def _uri(text):
    return x509.UniformResourceIdentifier(text)


@given(FEDERATIONS, CLIENTS)
def test_a_name_survives_a_round_trip_through_its_uri(federation, client):
    """For every allowed pair of names."""
    uri = identity.spiffe_uri(federation, client)
    assert identity.parse_spiffe_uri(uri) == (federation, client)


@given(st.text(max_size=80))
@example("spiffe://demo/client/a/b")
@example("spiffe://demo/client/a\n")
@example("spiffe://demo/client/")
@example("spiffe://demo/client/..")
@example("spiffe://DEMO/client/a")
@example("spiffe://demo/server/a")
@example("spiffe://demo/client/a?b")
@example("xspiffe://demo/client/a")
def test_any_other_uri_is_refused(uri):
    with pytest.raises(Refusal) as caught:
        identity.parse_spiffe_uri(uri)
    assert caught.value.code is Code.NO_CERTIFICATE


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "0", "x" * 64])
def test_client_names_of_the_documented_form_are_accepted(name):
    """At the limits of the rule."""
    assert identity.check_client_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "x" * 65, "a b", "a/b", "ä", "a\n", "\n", "..", ".a", "-rf", "_a", "a\0", "a:b"]
)
def test_other_client_names_are_refused_with_the_rule(name):
    with pytest.raises(UsageError, match=r"1 to 64 characters out of A-Z a-z 0-9 \. _ -"):
        identity.check_client_name(name)


@pytest.mark.parametrize("name", ["", "Demo", "a/b", "x" * 65, ".a", "a@b", "a\n"])
def test_other_federation_names_are_refused_with_the_rule(name):
    """A federation is a SPIFFE trust domain, so lower case only."""
    with pytest.raises(UsageError, match="federation name of 1 to 64 characters"):
        identity.check_federation(name)


def test_a_certificate_gives_its_peer():
    """Federation, client, serial in 40 hex digits and expiry in UTC."""
    peer = identity.peer_from_pem(_certificate(_uri("spiffe://demo/client/dev-1"), serial=0xABC))
    assert peer == identity.Peer(
        federation="demo", client="dev-1", serial=f"{0xABC:040x}", not_after=NOW + timedelta(days=1)
    )


def test_a_peer_is_parsed_once_for_the_same_bytes():
    pem = _certificate(_uri("spiffe://demo/client/dev-1"))
    assert identity.peer_from_pem(pem) is identity.peer_from_pem(bytes(bytearray(pem)))


@pytest.mark.parametrize(
    "names",
    [
        (),
        (x509.DNSName("demo"),),
        (_uri("spiffe://demo/client/a"), _uri("spiffe://demo/client/b")),
        (_uri("https://demo/client/a"),),
        (_uri("spiffe://demo/client/a/b"),),
        (_uri("spiffe://demo/server"),),
    ],
)
def test_a_certificate_of_another_kind_is_refused(names):
    """Without a name, with two names, or with a foreign name."""
    with pytest.raises(Refusal) as caught:
        identity.peer_from_pem(_certificate(*names))
    assert caught.value.code is Code.NO_CERTIFICATE


@given(st.binary(max_size=200))
@example(b"")
@example(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
def test_garbage_is_refused_as_a_certificate(data):
    with pytest.raises(Refusal) as caught:
        identity.peer_from_pem(data)
    assert caught.value.code is Code.NO_CERTIFICATE


GOOD = x509.load_pem_x509_certificate(
    _certificate(_uri("spiffe://demo/client/dev-1"))
).public_bytes(Encoding.DER)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Parsed a serial number")  # cryptography's, on serials <= 0
@settings(max_examples=1000)
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_damaged_certificate_raises_only_typed_errors(position, flip):
    """One changed byte of the DER either still parses or is refused."""
    der = bytearray(GOOD)
    der[position] ^= flip
    with contextlib.suppress(Refusal):
        identity.peer_from_pem(_as_pem(bytes(der)))


def _as_pem(der):
    body = base64.encodebytes(der)
    return b"-----BEGIN CERTIFICATE-----\n" + body + b"-----END CERTIFICATE-----\n"


def test_a_key_is_read_from_a_pem_with_certificates():
    pem = identity.key_to_pem(KEY) + _certificate(_uri("spiffe://demo/client/dev-1"))
    assert pem.startswith(b"-----BEGIN PRIVATE KEY-----")  # PKCS#8
    assert identity.key_from_pem(pem).private_numbers() == KEY.private_numbers()
    assert identity.peer_from_pem(pem).client == "dev-1"
    assert identity.validity(pem) == (NOW, NOW + timedelta(days=1))


def _foreign_key_pem(key):
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"garbage",
        _foreign_key_pem(ed25519.Ed25519PrivateKey.generate()),
        _foreign_key_pem(ec.generate_private_key(ec.SECP384R1())),
    ],
)
def test_another_key_is_an_integrity_error(pem):
    with pytest.raises(IntegrityError, match="private key"):
        identity.key_from_pem(pem)


def test_validity_of_an_invalid_certificate_is_an_integrity_error():
    with pytest.raises(IntegrityError, match="certificate"):
        identity.validity(b"garbage")


def test_a_request_carries_the_key_and_no_names():
    """The token identifies the client."""
    request = x509.load_pem_x509_csr(identity.build_csr(KEY))
    assert request.is_signature_valid
    assert request.public_key() == KEY.public_key()
    assert list(request.subject) == []
    assert list(request.extensions) == []


LIFE = timedelta(seconds=900)


@pytest.mark.parametrize(
    ("age_s", "jitter", "expected_s"),
    [
        (0, 0.0, 600),
        (0, 1.0, 510),
        (0, 0.5, 555),
        (100, 0.0, 500),
        (600, 0.0, 0),
        (899, 0.0, 0),
        (5000, 1.0, 0),
        (-60, 0.0, 660),
    ],
)
def test_renewal_is_due_at_two_thirds_of_life(age_s, jitter, expected_s):
    """The wait falls with age, never below zero, and jitter takes up to a tenth of the life."""
    now = NOW + timedelta(seconds=age_s)
    wait = identity.seconds_until_renewal(NOW, NOW + LIFE, now, jitter)
    assert wait == pytest.approx(expected_s, abs=1e-5)


@given(st.integers(1, 10**9), st.floats(0, 1, allow_nan=False), st.integers(-(10**9), 10**9))
def test_renewal_leaves_time_to_retry(life_s, jitter, age_s):
    """After half of the life and before its last third, for every life and jitter."""
    end, now = NOW + timedelta(seconds=life_s), NOW + timedelta(seconds=age_s)
    wait = identity.seconds_until_renewal(NOW, end, now, jitter)
    assert wait >= 0
    if wait > 0:
        assert 0.56 * life_s - 1e-5 <= age_s + wait <= 0.67 * life_s + 1e-5
