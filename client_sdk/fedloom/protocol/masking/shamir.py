"""Shamir's secret sharing over the integers modulo p = 2^256 − 189.

A secret is the value at 0 of a random polynomial of degree t − 1; the share of member i is its
value at x = i + 1. Any t shares give the secret, and fewer say nothing about it.

References:
    Shamir, How to Share a Secret, Communications of the ACM 22 (1979).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

PRIME: Final = 2**256 - 189
ELEMENT_BYTES: Final = 32

Random = Callable[[int], bytes]
"""Random bytes of a given number: `os.urandom`, or a fixed stream in tests."""


def random_element(random: Random) -> int:
    """A uniform integer from 0 to p − 1; larger ones are drawn again."""
    while (value := int.from_bytes(random(ELEMENT_BYTES), "big")) >= PRIME:
        pass
    return value


def deal(secret: int, threshold: int, num_shares: int, random: Random) -> list[int]:
    """Return one share for each member, in the order of the roster.

    Args:
        secret: from 0 to p − 1.
        threshold: shares that give the secret, from 1 to `num_shares`.
        num_shares: members.
        random: the source of the coefficients.
    """
    coefficients = [secret, *(random_element(random) for _ in range(threshold - 1))]
    return [polynomial(coefficients, x) for x in range(1, num_shares + 1)]


def polynomial(coefficients: Sequence[int], x: int) -> int:
    """The value of a polynomial at x; its coefficients from the constant on."""
    total = 0
    for coefficient in reversed(coefficients):
        total = (total * x + coefficient) % PRIME
    return total


def combine(shares: Mapping[int, int]) -> int:
    """Return the secret that these shares lie on a polynomial with.

    Args:
        shares: a member's index in the roster, from 0 → its share; as many as the threshold. With
            fewer, or wrong ones, the result is another number.
    """
    weights = _weights(tuple(shares))
    return sum(w * s for w, s in zip(weights, shares.values(), strict=True)) % PRIME


@lru_cache(maxsize=64)
def _weights(members: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's basis polynomials at 0: members usually reveal shares of many secrets at once."""
    weights = []
    for i in members:
        above = below = 1
        for j in members:
            if j != i:
                above = above * (j + 1) % PRIME
                below = below * (j - i) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)
