"""A second implementation of masking sessions in plain Python integers, from the specification.

It shares no code with fedloom: SHA-256, HMAC, AES of single blocks and AES-GCM come from libraries,
everything else is written out. Slow, and only for tests.
"""

import hashlib
import hmac
from itertools import count, pairwise

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

P = 2**256 - 189
CURVE = 2**255 - 19


# ---- hashes and keys -----------------------------------------------------------------------------


def frame(field):
    if isinstance(field, str):
        field = field.encode()
    if isinstance(field, int):
        field = field.to_bytes(8, "big", signed=field < 0)
    return len(field).to_bytes(4, "big") + field


def frames(*fields):
    return b"".join(map(frame, fields))


def H(label, *fields):  # noqa: N802 - the specification's name
    return hashlib.sha256(b"fedloom-secagg-1\0" + label.encode() + b"\0" + frames(*fields)).digest()


def signed_bytes(purpose, digest):
    return b"fedloom-signature-1\0" + purpose.encode() + b"\0" + digest


def hkdf(secret, salt, info):
    """RFC 5869 with SHA-256, one block."""
    extracted = hmac.digest(salt, secret, "sha256")
    return hmac.digest(extracted, b"fedloom-secagg-1 " + info + b"\1", "sha256")


def x25519(private, u):
    """RFC 7748, section 5."""
    k = bytearray(private)
    k[0] &= 248
    k[31] = k[31] & 127 | 64
    k, x1 = int.from_bytes(k, "little"), int.from_bytes(u, "little")
    x2, z2, x3, z3 = 1, 0, x1, 1
    for t in reversed(range(255)):
        if k >> t & 1:
            x2, x3, z2, z3 = x3, x2, z3, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a, b * b, d * a, c * b
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % CURVE, x1 * (da - cb) ** 2 % CURVE
        x2, z2 = aa * bb % CURVE, e * (aa + 121665 * e) % CURVE
        if k >> t & 1:
            x2, x3, z2, z3 = x3, x2, z3, z2
    return (x2 * pow(z2, -1, CURVE) % CURVE).to_bytes(32, "little")


def public(private):
    return x25519(private, (9).to_bytes(32, "little"))


def pair_private(seed, pid):
    return hkdf(seed, pid, b"x25519")


def pair_key(private, peer, sid, names):
    return hkdf(x25519(private, peer), sid, "\0".join(["pair", *sorted(names)]).encode())


def self_key(seed, sid):
    return hkdf(seed, sid, b"self")


def threshold(n):
    t = 1
    while 3 * t <= 2 * n:
        t += 1
    return t


# ---- shares ----------------------------------------


def shares_of(coefficients, n):
    return [sum(c * x**k for k, c in enumerate(coefficients)) % P for x in range(1, n + 1)]


def secret_of(shares):
    """Lagrange at 0, from {x: share}."""
    total = 0
    for x, share in shares.items():
        term = share
        for other in shares:
            if other != x:
                term = term * other * pow(other - x, -1, P) % P
        total += term
    return total % P


def open_share(key, sid, dealer, holder, ciphertext):
    return AESGCM(key).decrypt(
        ciphertext[:12], ciphertext[12:], sid + dealer.encode() + b"\0" + holder.encode()
    )


# ---- bodies ----------------------------------------


def keystream(key, length):
    """AES-256 in counter mode, block by block."""
    cipher = Cipher(AES(key), ECB()).encryptor()
    blocks = (cipher.update(i.to_bytes(16, "big")) for i in range(-(-length // 16)))
    return b"".join(blocks)[:length]


def layout(bits, num_values, num_words):
    """(offset, bytes) of each word, in order."""
    width = bits // 8
    start = (num_values * width + 7) // 8 * 8
    return [(i * width, width) for i in range(num_values)] + [
        (start + 8 * i, 8) for i in range(num_words)
    ]


def numbers(body, places, *, signed=False):
    return [int.from_bytes(body[at : at + w], "little", signed=signed) for at, w in places]


def combine(body, places, others):
    """Body plus sign times other, word by word; what is between words stays."""
    result = bytearray(body)
    for at, width in places:
        word = int.from_bytes(body[at : at + width], "little")
        for other, sign in others:
            word += sign * int.from_bytes(other[at : at + width], "little")
        result[at : at + width] = (word % 256**width).to_bytes(width, "little")
    return bytes(result)


def masks(sid, names, member, *, shared, own, private, publics):
    """The masks of a member's body: (key, sign)."""
    found = [(self_key(own, sid), 1)]
    for peer in shared:
        if peer != member:
            key = pair_key(private, publics[peer], sid, (names[member], names[peer]))
            found.append((key, 1 if names[member] < names[peer] else -1))
    return found


# ---- the draw ----------------------------------------


def draw(pid, coverage, nonces, group):
    names = sorted(nonces)
    joined = b"".join(nonces[name] for name in names)
    order = sorted(names, key=lambda name: H("draw", pid, coverage, joined, name))
    sessions = (len(names) + group - 1) // group
    ends = [0]
    for i in range(sessions):
        ends.append(ends[-1] + (len(names) - ends[-1] + sessions - i - 1) // (sessions - i))
    return [sorted(order[a:b]) for a, b in pairwise(ends)]


def stream(name):
    """Reads the random bytes of a member in the vectors."""
    data = b"".join(hashlib.sha256(name.encode() + bytes([i])).digest() for i in range(256))
    position = count()

    def read(n):
        return bytes(data[next(position)] for _ in range(n))

    return read


def element(read):
    while (value := int.from_bytes(read(32), "big")) >= P:
        pass
    return value
