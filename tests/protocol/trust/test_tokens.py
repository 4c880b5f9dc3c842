"""Tokens are one line of text, and no message shows their secrets."""

import hashlib

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import example, given
from hypothesis import strategies as st

from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.trust import tokens

PIN = bytes(range(32))
TOKENS = st.builds(
    tokens.Token,
    id=st.from_regex(r"[0-9a-f]{8}", fullmatch=True),
    secret=st.binary(min_size=32, max_size=32),
    pin=st.binary(min_size=32, max_size=32),
)


@given(TOKENS, st.sampled_from(["", " ", "\n", "\t \r\n"]))
def test_a_token_is_read_from_its_text(token, space):
    """Surrounding white space is ignored."""
    assert tokens.parse_token(space + token.text() + space) == token


def test_the_text_form_has_the_documented_parts():
    """`fl1.<8 hex>.<43>.<43>`."""
    token = tokens.make_token(PIN)
    scheme, token_id, secret, pin = token.text().split(".")
    assert (scheme, len(token_id), len(secret), len(pin)) == ("fl1", 8, 43, 43)
    assert token.pin == PIN
    assert len(token.secret) == 32


def test_no_two_tokens_share_a_secret():
    assert len({tokens.make_token(PIN).secret for _ in range(100)}) == 100


@given(st.text(max_size=200))
@example("")
@example("...")
@example("fl1.0f3a9c21")
@example("fl2.00000000." + "A" * 43 + "." + "A" * 43)
@example("fl1.00000000." + "A" * 43 + "." + "A" * 43 + ".")
@example("fl1.0000000G." + "A" * 43 + "." + "A" * 43)
@example("fl1.0000000٣." + "A" * 43 + "." + "A" * 43)
@example("fl1.00000000." + "A" * 42 + "." + "A" * 43)
@example("fl1.00000000." + "A" * 43 + "." + "A" * 44)
@example("fl1.00000000." + "A" * 43 + "=." + "A" * 43)
@example("fl1.00000000." + "A" * 42 + "B." + "A" * 43)  # two bits too many are set
@example("fl1.00000000." + "A" * 42 + "\n." + "A" * 43)
def test_other_texts_are_bad_tokens(text):
    """The refusal is typed and has the expected form."""
    with pytest.raises(Refusal, match=r"fl1\.<id>\.<secret>\.<root pin>") as caught:
        tokens.parse_token(text)
    assert caught.value.code is Code.BAD_TOKEN


@given(TOKENS.filter(lambda token: token.secret != token.pin), st.data())
def test_no_message_shows_a_secret(token, data):
    """For damage in any part of a token."""
    parts = token.text().split(".")
    secret = parts[2]
    damaged = data.draw(st.sampled_from([0, 1, 3]))
    parts[damaged] = parts[damaged] + "!"
    for text in (".".join(parts), secret, f"fl1.{secret}", f"fl1.{token.id}.{secret}!.x"):
        with pytest.raises(Refusal) as caught:
            tokens.parse_token(text)
        assert secret not in str(caught.value)
        assert secret not in caught.value.detail
    assert secret not in repr(token)
    assert repr(token.secret) not in repr(token)


def test_the_ledger_holds_the_sha256_of_the_secret():
    """Changing the stored form would void every open token."""
    assert tokens.secret_hash(b"\0" * 32) == hashlib.sha256(b"\0" * 32).hexdigest()


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_only_the_same_secret_matches(secret, other):
    stored = tokens.secret_hash(secret)
    assert tokens.secret_matches(secret, stored)
    assert tokens.secret_matches(other, stored) == (secret == other)


def test_a_damaged_hash_matches_nothing():
    """A stored hash that is not ASCII refuses instead of raising."""
    assert not tokens.secret_matches(b"\0" * 32, "é")
    assert not tokens.secret_matches(b"\0" * 32, "")


def test_the_pin_is_the_sha256_of_the_roots_der(tmp_path):
    """The pin can be checked with openssl x509 -outform der | sha256sum."""
    from datetime import UTC, datetime

    from fedloom.server.pki.authority import Authority

    authority = Authority.create(tmp_path / "pki", "demo", datetime.now(UTC))
    root = x509.load_pem_x509_certificate(authority.root_pem)
    expected = hashlib.sha256(root.public_bytes(Encoding.DER)).digest()
    assert tokens.root_pin(authority.root_pem) == authority.root_pin == expected
