"""The vectors of masking sessions, recomputed by a second implementation in plain integers."""

import json
import struct
from hashlib import blake2b
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from support import secagg
from support.secagg import H, P, frame, frames

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "secagg.json").read_text())
PID, SID, KEY = (bytes([i]) * 32 for i in (1, 2, 3))


def raw(text):
    return bytes.fromhex(text)


def test_a_digest_frames_its_fields():
    """Bytes, a string, integers in two's complement, a float."""
    half = b"\x3f\xe0" + bytes(6)
    assert H("label", b"bytes", "text", 5, -1, half).hex() == VECTORS["digest"]


def test_a_bitmap_has_the_first_member_in_the_lowest_bit():
    said = VECTORS["bitmap"]
    bits = sum(1 << member for member in said["members"])
    assert raw(said["bytes"]) == bits.to_bytes(2, "little")


def test_the_core_covers_the_task():
    """The encoding of the vector's task, written out by hand from fleet.proto."""
    key = frames(1, "digits-0a1b2c") + frames(2, 3)
    model = frames(1, "ab") + frames(2, 512)
    train = frames(1, 2) + frames(4, struct.pack(">d", 0.1)) + frames(6, frames("head.*", "tail"))
    config = frames(
        *("a", frames(3, struct.pack(">d", -0.5))), *("b", frames(1, 0)), *("é", frames(4, "x"))
    )
    task = frames(1, key) + frames(2, 1) + frames(3, model) + frames(4, train) + frames(9, config)
    metrics = frames("accuracy", struct.pack(">d", 1.0), "loss", struct.pack(">d", 8.0))
    terms = frames(32, -3, 64, 2**64 - 1, metrics)
    assert H("core", task, terms).hex() == VECTORS["core"]["core"]


def test_ids_and_seeds():
    core = raw(VECTORS["core"]["core"])
    assert H("pid", "hospitals", "digits-0a1b2c", 3, 1, core).hex() == VECTORS["pid"]
    assert H("sid", PID, 1, SID, KEY).hex() == VECTORS["sid"]
    hashed = blake2b(b"12345\x003\x00calm-heron-27", digest_size=8).digest()
    assert VECTORS["seed"]["seed"] == str(int.from_bytes(hashed, "little") // 2)


def test_keys_of_a_seed():
    said = VECTORS["keys"]
    assert secagg.pair_private(KEY, PID).hex() == said["pair_private"]
    assert secagg.self_key(KEY, SID).hex() == said["self_mask_key"]
    assert H("b", PID, "calm-heron-27", KEY).hex() == said["self_commitment"]


def test_a_mask_is_aes_in_counter_mode():
    """Its first words, and one far behind."""
    first = secagg.keystream(KEY, 64)
    words = secagg.numbers(first, [(8 * i, 8) for i in range(8)])
    assert [str(word) for word in words] == VECTORS["stream"]["words"]
    last = secagg.keystream(KEY, 8 * 2**20 + 8)[-8:]
    assert str(int.from_bytes(last, "little")) == VECTORS["stream"]["word_2_20"]


def test_shares_lie_on_the_polynomial():
    coefficients = [int(value) for value in VECTORS["shamir"]["coefficients"]]
    shares = secagg.shares_of(coefficients, 5)
    assert [str(share) for share in shares] == VECTORS["shamir"]["shares"]
    assert secagg.secret_of({x: shares[x - 1] for x in (1, 4, 5)}) == coefficients[0]


def test_statements():
    said = VECTORS["statements"]
    agreed = H("agree", SID, bytes([0b10111]), bytes([0b10101]))
    assert secagg.signed_bytes("secagg.agree", agreed).hex() == said["agree"]
    assert secagg.signed_bytes("secagg.closed", H("closed", SID)).hex() == said["closed"]


def test_the_draw():
    said = VECTORS["draw"]
    nonces = {name: raw(nonce) for name, nonce in said["nonces"].items()}
    assert secagg.draw(PID, said["coverage"], nonces, said["group"]) == said["sessions"]


@pytest.mark.parametrize("bits", [16, 24, 32, 64])
def test_bodies(bits):
    """Values, zeros and words, then one mask added and one subtracted."""
    said = VECTORS["bodies"][str(bits)]
    places = secagg.layout(bits, 7, 2)
    plain = raw(said["plain"])
    assert len(plain) == sum(places[-1])
    expected = [int(value) for value in said["values"] + said["words"]]
    assert secagg.numbers(plain, places, signed=True) == expected
    keys = [(raw(said["added"]), 1), (raw(said["subtracted"]), -1)]
    streams = [(secagg.keystream(key, len(plain)), sign) for key, sign in keys]
    assert secagg.combine(plain, places, streams).hex() == said["masked"]


# ---- whole sessions ------------------------------------------------------------------------------


class Recomputed:
    """The members of a session, from the random bytes of each."""

    def __init__(self, said):
        self.said, self.names = said, said["names"]
        self.n, self.t = len(self.names), secagg.threshold(len(self.names))
        self.pid = H(
            *("pid", said["federation"], said["run"], said["round"]),
            *(said["attempt"], raw(said["core"])),
        )
        self.reads = [secagg.stream(name) for name in said["random"]]
        self.channels = [read(32) for read in self.reads]
        self.pair_seeds = [secagg.element(read) for read in self.reads]
        self.self_seeds = [secagg.element(read) for read in self.reads]
        self.nonces = [read(32) for read in self.reads]
        self.privates = [
            secagg.pair_private(s.to_bytes(32, "big"), self.pid) for s in self.pair_seeds
        ]
        self.publics = [secagg.public(private) for private in self.privates]
        self.sid = H(
            "sid", self.pid, 0, *(H("ready", *fields) for fields in map(self.stated, range(5)))
        )
        self.dealt = [
            [
                secagg.shares_of([seed, *(secagg.element(read) for _ in range(self.t - 1))], self.n)
                for seed in seeds
            ]
            for read, *seeds in zip(self.reads, self.pair_seeds, self.self_seeds, strict=True)
        ]

    def stated(self, i):
        own = self.self_seeds[i].to_bytes(32, "big")
        return (
            *(self.pid, self.names[i], f"{i:040x}", "", secagg.public(self.channels[i])),
            *(self.publics[i], H("b", self.pid, self.names[i], own), self.nonces[i]),
        )

    def share(self, dealer, holder, kind):
        return self.dealt[dealer]["sb".index(kind)][holder].to_bytes(32, "big")

    def kind(self, member):
        return "b" if member in self.said["masked"] else "s"


@pytest.fixture(
    scope="module", params=VECTORS["sessions"], ids=lambda said: f"b={said['sum_bits']}"
)
def session(request):
    return Recomputed(request.param)


def split(data, *lengths):
    parts = []
    for length in lengths:
        parts.append(data[:length])
        data = data[length:]
    assert not data
    return parts


def test_in_each_session_one_member_drops_out_in_another_phase():
    phases = {
        tuple(len(said[phase]) for phase in ("names", "shared", "masked", "revealed"))
        for said in VECTORS["sessions"]
    }
    assert phases == {(5, 4, 4, 4), (5, 5, 4, 4), (5, 5, 5, 4)}


def test_ids_of_a_session(session):
    assert session.pid.hex() == session.said["pid"]
    assert session.sid.hex() == session.said["sid"]


def test_adverts(session):
    """The fields, and a signature over them by the certificate's key."""
    for i, advert in enumerate(map(raw, session.said["adverts"])):
        stated = frames(*session.stated(i))
        assert advert[: len(stated)] == stated
        length = int.from_bytes(advert[len(stated) :][:4], "big")
        signature, chain = split(advert[len(stated) + 4 :], length, 4)
        assert chain == frame(b"")
        check(session, i, "secagg.ready", H("ready", *session.stated(i)), signature)


def check(session, member, purpose, digest, signature):
    key = ec.derive_private_key(session.said["signing_keys"][member], ec.SECP256R1()).public_key()
    key.verify(signature, secagg.signed_bytes(purpose, digest), ec.ECDSA(hashes.SHA256()))


def test_shares(session):
    """Each decrypts to its holder's shares, and each commitment is to one of them."""
    for i, message in enumerate(map(raw, session.said["shares"])):
        lengths = [length for j in range(session.n) for length in (92 * (i != j), 32, 32)]
        parts = split(message, *lengths)
        for j in range(session.n):
            ciphertext, s, b = parts[3 * j : 3 * j + 3]
            both = [session.share(i, j, kind) for kind in "sb"]
            names = session.names[i], session.names[j]
            assert [s, b] == [
                H("share", session.sid, *names, kind, share)
                for kind, share in zip("sb", both, strict=True)
            ]
            if i != j:
                secret = secagg.x25519(session.channels[j], secagg.public(session.channels[i]))
                info = b"\0".join([b"channel", *(name.encode() for name in names)])
                key = secagg.hkdf(secret, session.sid, info)
                assert secagg.open_share(key, session.sid, *names, ciphertext) == b"".join(both)


def test_masked_bodies(session):
    said = session.said
    places = secagg.layout(said["sum_bits"], 3, 1)
    for name, body in said["bodies"].items():
        i = int(name)
        plain = raw(body["plain"])
        values = secagg.numbers(plain, places, signed=True)
        assert values == [i, -100 * i, 7, i + 1]
        own = session.self_seeds[i].to_bytes(32, "big")
        keys = secagg.masks(
            *(session.sid, session.names, i),
            shared=said["shared"],
            own=own,
            private=session.privates[i],
            publics=session.publics,
        )
        streams = [(secagg.keystream(key, len(plain)), sign) for key, sign in keys]
        assert secagg.combine(plain, places, streams).hex() == body["masked"]


def test_agreements(session):
    sets = (session.said["shared"], session.said["masked"])
    bitmaps = [bytes([sum(1 << member for member in members)]) for members in sets]
    signatures = session.said["agreements"]
    assert [int(i) for i in signatures] == session.said["masked"]
    for i, signature in signatures.items():
        digest = H("agree", session.sid, *bitmaps)
        check(session, int(i), "secagg.agree", digest, raw(signature))


def test_reveals_give_the_seeds(session):
    """Each member reveals one share of each member of U2; t of them give the seed."""
    said = session.said
    revealed = {}
    for name, message in said["reveals"].items():
        entries = split(raw(message), *[33] * len(said["shared"]))
        for dealer, entry in zip(said["shared"], entries, strict=True):
            kind = session.kind(dealer)
            assert entry == kind.encode() + session.share(dealer, int(name), kind)
            revealed.setdefault(dealer, {})[int(name) + 1] = int.from_bytes(entry[1:], "big")
    for dealer in said["shared"]:
        seeds = session.self_seeds if session.kind(dealer) == "b" else session.pair_seeds
        assert len(revealed[dealer]) == session.t
        seed = secagg.secret_of(revealed[dealer])
        assert seed == seeds[dealer] < P
        assert seed.to_bytes(32, "big").hex() == said["seeds"][str(dealer)]


def test_the_sum(session):
    """From bodies and revealed seeds alone, as a server has them."""
    said = session.said
    places = secagg.layout(said["sum_bits"], 3, 1)
    bodies = [raw(said["bodies"][str(i)]["masked"]) for i in said["masked"]]
    total = secagg.combine(bytes(len(bodies[0])), places, [(body, 1) for body in bodies])
    keys = []
    for i in said["shared"]:
        seed = raw(said["seeds"][str(i)])
        if i in said["masked"]:
            keys.append((secagg.self_key(seed, session.sid), -1))
            continue
        private = secagg.pair_private(seed, session.pid)
        for j in said["masked"]:
            names = session.names[i], session.names[j]
            key = secagg.pair_key(private, session.publics[j], session.sid, names)
            keys.append((key, -1 if names[1] < names[0] else 1))
    streams = [(secagg.keystream(key, len(total)), sign) for key, sign in keys]
    plain = secagg.combine(total, places, streams)
    expected = [int(value) for value in said["sum"]["values"] + said["sum"]["words"]]
    assert secagg.numbers(plain, places, signed=True) == expected
    bodies = [raw(said["bodies"][str(i)]["plain"]) for i in said["masked"]]
    sums = [
        sum(each)
        for each in zip(*(secagg.numbers(b, places, signed=True) for b in bodies), strict=True)
    ]
    assert expected == sums
