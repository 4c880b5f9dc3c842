"""Password hashes, and the limits on guessing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.protocol.errors import UsageError
from fedloom.server.access import passwords
from fedloom.server.access.passwords import Cost, check_new, hashed, is_outdated, matches
from fedloom.server.access.throttle import FORGET_S, Throttle, network_of

TRIVIAL = Cost(n=2, r=1, p=1)


@given(st.text(max_size=40), st.text(max_size=40))
def test_only_the_password_matches_its_hash(password, other):
    stored = hashed(password, TRIVIAL)
    assert matches(password, stored)
    assert matches(other, stored) == (passwords._derive(other, b"", TRIVIAL)
                                      == passwords._derive(password, b"", TRIVIAL))  # fmt: skip


def test_hashes_are_salted_and_hold_no_password():
    first, second = (hashed("correct horse", TRIVIAL) for _ in range(2))
    assert first != second
    assert "correct" not in first


def test_equivalent_unicode_forms_are_one_password():
    """Keyboards send e with an accent as one character or two."""
    assert matches("caf\u00e9 au lait", hashed("cafe\u0301 au lait", TRIVIAL))


def test_missing_hash_matches_nothing_at_the_full_cost(monkeypatch):
    """Not even the empty password."""
    derived = []
    derive = passwords._derive
    monkeypatch.setattr(
        passwords, "_derive", lambda p, s, cost: derived.append(cost) or derive(p, s, cost)
    )
    assert not matches("", None)
    assert not matches("x", "")
    assert derived == [passwords.COST] * 2


def test_cheaper_hash_is_outdated_but_matches():
    stored = hashed("correct horse", TRIVIAL)
    assert is_outdated(stored)
    assert not is_outdated(hashed("correct horse"))


@pytest.mark.parametrize("password", ["", "short", "a" * 40, "ab" * 20, "x" * 2000])
def test_bad_password_is_refused(password):
    """Too short, too long, or too few different letters; the message does not repeat it."""
    with pytest.raises(UsageError) as refused:
        check_new(password)
    assert not password or password not in str(refused.value)


def test_waits_double_up_to_the_longest():
    throttle, now, waits = Throttle(free=3, longest_s=10.0), 0.0, []
    for _ in range(9):
        throttle.count("ann", now)
        waits.append(throttle.wait_s("ann", now))
        now += waits[-1]
    assert waits == [0, 0, 0, 1, 2, 4, 8, 10, 10]
    assert throttle.wait_s("bob", now) == 0


def test_unused_and_forgiven_keys_start_from_zero():
    """After an hour, or after a success."""
    throttle = Throttle(free=0, longest_s=60.0)
    for _ in range(5):
        throttle.count("ann", 0.0)
    throttle.count("ann", FORGET_S + 1)
    assert throttle.wait_s("ann", FORGET_S + 1) == 1
    throttle.forgive("ann")
    assert throttle.wait_s("ann", FORGET_S + 1) == 0


def test_throttle_memory_is_bounded():
    """The latest keys are kept."""
    throttle = Throttle(free=0, longest_s=60.0, max_keys=100)
    for number in range(1000):
        throttle.count(f"name-{number}", 0.0)
    assert len(throttle) == 100
    assert throttle.wait_s("name-999", 0.0) > 0


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8::1:2:3:4", "2001:db8::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("nonsense", "nonsense"),
    ],
)
def test_throttle_key_of_an_address_is_its_network(address, network):
    """An IPv6 host has 2^64 addresses."""
    assert network_of(address) == network


def test_cost_is_stored_with_the_hash(monkeypatch):
    """64 MiB for each guess."""
    monkeypatch.undo()
    cost = passwords.COST
    assert 128 * cost.n * cost.r == 64 << 20
    assert hashed("correct horse").startswith("scrypt$65536$8$2$")
