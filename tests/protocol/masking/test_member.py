"""A lying server against a member: each lie ends in a sentence, and in nothing that unmasks."""

import copy
import gc
import pickle
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedloom.protocol import masking
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking import keys, statements
from fedloom.protocol.masking.member import MemberPhase
from fedloom.protocol.trust.signed_bytes import to_sign
from fedloom.strategies.partial_work import PartialWork
from support.mask_members import Session, identify, member, private_key, terms

N, T = 7, 5


@pytest.fixture
def session():
    """Seven members that have shared; five are a quorum."""
    return Session(N).share()


@pytest.fixture
def masked(session):
    """Seven members whose masked bodies are durable."""
    session.mask()
    return session


def resigned(advert, **changed):
    """An advert with other fields, signed by its client's certificate key."""
    other = replace(advert, **changed)
    key = private_key(other.name)
    statement = to_sign(statements.READY, other.digest())
    return replace(other, signature=masking.signer(key)(statement))


def refuses(who, match, call, *arguments):
    """The call ends the session with this sentence, and nothing secret is left."""
    with pytest.raises(Refusal, match=match) as caught:
        call(*arguments)
    assert who.phase is MemberPhase.ENDED
    assert str(caught.value).startswith(who.reason) or who.reason in str(caught.value)
    assert not who._shares
    assert not any(who._secrets.pair_seed)
    assert not any(who._secrets.self_seed)
    with pytest.raises(Refusal, match="ended"):
        who.mask(
            np.zeros(48, np.uint8), masking.BodyLayout(sum_bits=32, num_values=12, num_words=0)
        )
    return caught.value


# ---- the list of ready clients -------------------------------------------------------------------


def joining(changed):
    """A member, and the list that it is shown: changed(adverts) of eight clients."""
    fresh = Session(8)
    return fresh.members[0], changed(fresh.adverts)


KEY = X25519PrivateKey.generate().public_key().public_bytes_raw()
OTHER_KEY = X25519PrivateKey.generate().public_key().public_bytes_raw()
NOT_CANONICAL = (int.from_bytes(KEY, "little") + 2**255).to_bytes(32, "little")
SMALL_ORDER = (1).to_bytes(32, "little")

LISTS = {
    "an entry that nobody signed": (
        lambda ads: [*ads[:-1], replace(ads[-1], signature=ads[0].signature)],
        "signature for 'secagg.ready'",
    ),
    "an entry without a signature": (
        lambda ads: [*ads[:-1], replace(ads[-1], signature=b"")],
        "signature for 'secagg.ready'",
    ),
    "a key that the server put in": (
        lambda ads: [*ads[:-1], replace(ads[-1], pair_key=KEY)],
        "signature for 'secagg.ready'",
    ),
    "another commitment": (
        lambda ads: [*ads[:-1], replace(ads[-1], self_commitment=bytes(32))],
        "signature for 'secagg.ready'",
    ),
    "this client's advert is missing": (lambda ads: ads[1:], "own advert once"),
    "this client's advert is twice": (lambda ads: [*ads, ads[0]], "own advert once"),
    "this client's advert is another": (
        lambda ads: [resigned(ads[0], nonce=bytes(32)), *ads[1:]],
        "own advert once",
    ),
    "another client is twice": (lambda ads: [*ads, ads[1]], "different names and keys"),
    "one name with two adverts": (
        lambda ads: [*ads, resigned(ads[1], pair_key=KEY, nonce=bytes(32))],
        "different names and keys",
    ),
    "one name with two adverts of different keys": (
        lambda ads: [*ads, resigned(ads[1], pair_key=KEY, channel_key=OTHER_KEY)],
        "different names and keys",
    ),
    "this client's key under another name": (
        lambda ads: [*ads[:-1], resigned(ads[-1], pair_key=ads[0].pair_key)],
        "different names and keys",
    ),
    "one key as channel and pair key": (
        lambda ads: [*ads[:-1], resigned(ads[-1], channel_key=ads[1].pair_key)],
        "different names and keys",
    ),
    "a key in a second form": (
        lambda ads: [*ads[:-1], resigned(ads[-1], pair_key=NOT_CANONICAL)],
        "X25519 public key",
    ),
    "a point of small order": (
        lambda ads: [*ads[:-1], resigned(ads[-1], channel_key=SMALL_ORDER)],
        "no point of small order",
    ),
    "another class": (lambda ads: [*ads[:-1], resigned(ads[-1], coverage="0.5")], "cover the same"),
    "an advert of an earlier try": (
        lambda ads: [*ads[:-1], member("client-07", terms(attempt=2)).advert],
        "this try of its round",
    ),
    "an advert for another round": (
        lambda ads: [*ads[:-1], member("client-07", terms(round=4)).advert],
        "this try of its round",
    ),
    "an advert for another run": (
        lambda ads: [*ads[:-1], member("client-07", terms(run="other")).advert],
        "this try of its round",
    ),
    "an advert for another federation": (
        lambda ads: [*ads[:-1], member("client-07", terms(federation="other")).advert],
        "this try of its round",
    ),
    "an advert for another task": (
        lambda ads: [*ads[:-1], member("client-07", terms(core=bytes(32))).advert],
        "this try of its round",
    ),
    "two clients alone": (lambda ads: ads[:2], "at least 3 members"),
}


@pytest.mark.parametrize(("changed", "match"), LISTS.values(), ids=LISTS)
def test_a_list_that_is_not_what_clients_signed_is_refused(changed, match):
    who, shown = joining(changed)
    refuses(who, match, who.join, shown, identify)


HALVES = PartialWork(widths=[1.0, 0.5])


def test_a_peer_of_another_width_is_refused_whatever_class_it_states():
    """Whoever chose its class could fill the session of a width; names of one width are fine."""
    width = terms(widths=HALVES).width
    own = "client-00"
    same, other = (
        [
            name
            for name in (f"client-{i:02}" for i in range(1, 20))
            if (width(name) == width(own)) is s
        ]
        for s in (True, False)
    )
    stated = masking.width_class(width(own), {})
    asked = terms(widths=HALVES)
    who, *peers = (member(name, asked, coverage=stated) for name in (own, *same[:3]))
    shown = [each.advert for each in (who, *peers)]
    assert who.join(shown, identify)
    who, sybil = (member(name, asked, coverage=stated) for name in (own, other[0]))
    shown = [who.advert, sybil.advert, *shown[1:]]
    refuses(who, f"as the name {other[0]} has it", who.join, shown, identify)


def test_an_advert_with_the_certificate_of_another_client_is_refused():
    who, shown = joining(lambda ads: ads)

    def other(advert):
        found = identify(advert)
        return replace(found, name="mallory") if advert.name == "client-03" else found

    assert refuses(who, "certificate of client-03", who.join, shown, other).code == (
        Code.WRONG_IDENTITY
    )


def test_a_chain_that_does_not_verify_ends_the_session():
    who, shown = joining(lambda ads: ads)

    def unknown(advert):
        raise Refusal(Code.NO_CERTIFICATE, "Expected a certificate of this federation.")

    refuses(who, "of this federation", who.join, shown, unknown)


def test_a_session_below_the_owner_s_floor_is_refused():
    """Eight are ready, and the owner wants nine."""
    fresh = Session(8, floors=masking.MaskingFloors(min_group=9))
    who = fresh.members[0]
    refuses(who, "at least 9 members.*min_group", who.join, fresh.adverts, identify)


def test_a_session_that_is_drawn_too_small_is_refused():
    """Eight of a group of seven are two sessions of four."""
    fresh = Session(8, floors=masking.MaskingFloors(min_group=5), asked=terms(group=7))
    who = fresh.members[0]
    refuses(who, "at least 5 members.*got one of 4", who.join, fresh.adverts, identify)


def test_a_short_list_is_refused():
    """The owner wants to see many signed adverts before one of the sessions is drawn."""
    fresh = Session(8, floors=masking.MaskingFloors(min_group=3, min_ready=9))
    who = fresh.members[0]
    refuses(who, "at least 9 ready clients.*min_ready", who.join, fresh.adverts, identify)


def test_only_listed_peers_are_accepted():
    """By their public keys: the authority can give any key any name."""
    listed = [
        private_key(f"client-{i:02}")
        .public_key()
        .public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        for i in range(1, 8)
    ]
    good = masking.MaskingFloors(min_group=3, peers=frozenset(listed))
    fresh = Session(8, floors=good)
    fresh.members[0].join(fresh.adverts, identify)
    bad = replace(good, peers=frozenset(listed[:-1]))
    fresh = Session(8, floors=bad)
    who = fresh.members[0]
    refuses(who, "masking.peers.*client-07", who.join, fresh.adverts, identify)


def test_no_session_is_larger_than_the_group():
    """Members draw their session themselves, whatever the server holds for one."""
    fresh = Session(9, asked=terms(group=4)).share()
    assert {each.roster.size for each in fresh.members} == {3}
    assert len({each.roster.sid for each in fresh.members}) == 3


def test_members_with_different_lists_share_no_mask():
    """The ids of their sessions differ, and so does every key."""
    fresh = Session(8)
    fresh.members[0].join(fresh.adverts, identify)
    fresh.members[1].join(fresh.adverts[:-1], identify)
    assert fresh.members[0].roster.sid != fresh.members[1].roster.sid


def test_a_member_accepts_one_list(session):
    """The same again has the same answer; another one ends the session."""
    who = session.members[0]
    assert who.join(session.adverts[::-1], identify) == session.dealt[0]
    refuses(who, "a second, other one", who.join, session.adverts[:-1], identify)


# ---- who is ready --------------------------------------------------------------------------------


def test_a_try_is_not_repeated():
    """Fresh keys need a new number; the count is on disk."""
    assert member("client-00", terms(attempt=2), last_attempt=1).advert
    with pytest.raises(Refusal, match="try 2 again"):
        member("client-00", terms(attempt=2), last_attempt=2)
    with pytest.raises(ValueError, match="attempt <= 3"):
        terms(attempt=4)


def test_an_update_whose_body_has_left_is_not_masked_again():
    with pytest.raises(Refusal, match="not masked again"):
        member("client-00", terms(attempt=2), last_attempt=1, body_left=True)


def test_each_try_has_fresh_secrets():
    first, second = (member("client-00", terms(attempt=i)).advert for i in (1, 2))
    for name in ("pid", "channel_key", "pair_key", "self_commitment", "nonce"):
        assert getattr(first, name) != getattr(second, name)


# ---- U2 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shared", "match"),
    [
        ({0}, f"at least {T} of {N} members in U2"),
        ({0, 1, 2, 3}, f"at least {T} of {N} members in U2"),
        ({1, 2, 3, 4, 5}, "with this one in it"),
        ({0, 1, 2, 3, 4, 9}, "with this one in it"),
    ],
)
def test_a_wrong_u2_is_refused(session, shared, match):
    """Told U2 = {self}, a member would send its update under its own mask alone."""
    who, shared = session.members[0], frozenset(shared)
    refuses(who, match, who.receive, shared, {})


def test_shares_of_exactly_u2_are_expected(session):
    who = session.members[0]
    sealed = session.sealed(0, session.everyone - {6})
    refuses(who, "exactly the other members", who.receive, session.everyone, sealed)


def test_a_member_accepts_one_u2(session):
    who, everyone = session.members[0], session.everyone
    sealed = session.sealed(0, everyone)
    assert who.receive(everyone, sealed) == who.receive(everyone, sealed) == frozenset()
    fewer = everyone - {6}
    refuses(who, "a second, other one", who.receive, fewer, session.sealed(0, fewer))


@pytest.mark.parametrize("part", ["ciphertext", "pair_commitment", "self_commitment"])
def test_shares_that_do_not_fit_are_complained_about(session, part):
    """The member masks all the same, and reveals nothing of that dealer."""
    everyone, who = session.everyone, session.members[0]
    sealed = session.sealed(0, everyone)
    raw = bytearray(getattr(sealed[3], part))
    raw[20] ^= 1
    sealed[3] = replace(sealed[3], **{part: bytes(raw)})
    assert who.receive(everyone, sealed) == {3}
    who.mask(np.zeros(48, np.uint8), masking.BodyLayout(sum_bits=32, num_values=12, num_words=0))
    for i in range(1, N):
        session.members[i].receive(everyone, session.sealed(i, everyone))
        session.members[i].mask(
            *(np.zeros(48, np.uint8), masking.BodyLayout(sum_bits=32, num_values=12, num_words=0))
        )
    assert who.reveal(session.agree()).shares.keys() == everyone - {3}


def test_shares_for_another_holder_do_not_fit(session):
    sealed = session.sealed(0, session.everyone)
    sealed[3] = session.dealt[3].shares[1]
    assert session.members[0].receive(session.everyone, sealed) == {3}


# ---- the body ------------------------------------------------------------------------------------


def test_keys_serve_one_body(session):
    session.mask()
    body = np.zeros(session.layout.size_bytes, np.uint8)
    with pytest.raises(ValueError, match="one body"):
        session.members[0].mask(body, session.layout)
    assert not body.any()


def test_a_body_of_another_size_uses_up_no_keys(session):
    who, everyone = session.members[0], session.everyone
    who.receive(everyone, session.sealed(0, everyone))
    with pytest.raises(Refusal, match="got 28"):
        who.mask(np.zeros(28, np.uint8), session.layout)
    who.mask(np.zeros(session.layout.size_bytes, np.uint8), session.layout)


def test_a_masked_body_says_nothing_without_keys(session):
    """Bodies of zeros and of updates look alike: no word is as it was."""
    for plain, body in session.mask().values():
        assert (plain != body).any()
        assert len(set(body.tolist())) > 10


# ---- U3 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("survivors", "match"),
    [
        ({0}, f"at least {T} of {N} members in U3"),
        ({0, 1, 2, 3}, f"at least {T} of {N} members in U3"),
        ({1, 2, 3, 4, 5}, "with this member among them"),
        ({0, 1, 2, 3, 4, 9}, "out of the members that were masked against"),
    ],
)
def test_a_wrong_u3_is_refused(masked, survivors, match):
    who = masked.members[0]
    refuses(who, match, who.agree, frozenset(survivors))


def test_u3_is_within_u2(session):
    """A member that did not share cannot have survived."""
    shared = session.everyone - {6}
    session.mask(shared)
    who = session.members[0]
    refuses(who, "masked against", who.agree, session.everyone)


def test_a_member_signs_one_u3(masked):
    who = masked.members[0]
    assert who.agree(masked.everyone) == who.agree(masked.everyone)
    refuses(who, "a second, other one", who.agree, masked.everyone - {6})


def test_survivors_come_after_the_body(session):
    who, everyone = session.members[0], session.everyone
    who.receive(everyone, session.sealed(0, everyone))
    refuses(who, "when masked, got it when received", who.agree, everyone)


def test_halves_that_are_told_different_survivors_reveal_nothing(masked):
    """Neither half has a quorum, whichever signatures the server shows it."""
    first, second = masked.everyone - {5}, masked.everyone - {6}
    signatures = {i: masked.members[i].agree(first if i < 4 else second) for i in range(5)}
    for i, match in ((0, "signature for 'secagg.agree'"), (4, "signature for 'secagg.agree'")):
        who = masked.members[i]
        refuses(who, match, who.reveal, signatures)
    who = masked.members[1]
    refuses(who, "at least 5 members", who.reveal, {i: signatures[i] for i in range(4)})


def test_halves_that_masked_against_different_sets_reveal_nothing(session):
    """U2 is signed with U3."""
    everyone = session.everyone
    session.mask(everyone, range(4))
    session.mask(everyone - {6}, range(4, 6))
    survivors = everyone - {6}
    signatures = {i: session.members[i].agree(survivors) for i in range(6)}
    who = session.members[0]
    refuses(who, "signature for 'secagg.agree'", who.reveal, signatures)


# ---- revealing -----------------------------------------------------------------------------------


def test_a_quorum_is_of_survivors(masked):
    """Signatures of a member that is not in U3 do not count, nor does one twice."""
    survivors = masked.everyone - {5, 6}
    signatures = {i: masked.members[i].agree(survivors) for i in range(4)}
    who = masked.members[0]
    wrong = {**signatures, 5: signatures[1], 6: signatures[2]}
    refuses(who, "at least 5 members.*got 4", who.reveal, wrong)


def test_a_signature_counts_for_its_member_alone(masked):
    signatures = masked.agree()
    who = masked.members[0]
    refuses(who, "client-06's signature", who.reveal, signatures | {6: signatures[5]})


def test_a_signature_for_another_session_does_not_count(masked):
    other = Session(N).share()
    other.mask()
    signatures = masked.agree() | {6: other.agree()[6]}
    who = masked.members[0]
    refuses(who, "client-06's signature", who.reveal, signatures)


def test_a_closing_signature_is_no_agreement(masked):
    closed = {i: masked.members[i].close() for i in range(2)}
    signatures = {i: masked.members[i].agree(masked.everyone) for i in range(2, N)}
    who = masked.members[2]
    refuses(who, "client-00's signature", who.reveal, signatures | closed)


def test_one_share_of_each_member_is_revealed_once(masked):
    """B of a survivor, s of the others; the rest is wiped, and the message is repeated."""
    survivors = masked.everyone - {6}
    who = masked.members[0]
    held = {i: tuple(map(bytes, both)) for i, both in who._shares.items()}
    signatures = {i: masked.members[i].agree(survivors) for i in sorted(survivors)}
    revealed = who.reveal(signatures)
    assert revealed.shares == {i: held[i][0 if i == 6 else 1] for i in masked.everyone}
    assert who.reveal(dict(list(signatures.items())[:T])) == revealed
    others = {held[i][1 if i == 6 else 0] for i in masked.everyone}
    assert not others & reachable(who)


def test_a_member_reveals_after_it_signed(masked):
    who = masked.members[0]
    signatures = {i: masked.members[i].agree(masked.everyone) for i in range(1, N)}
    refuses(who, "when agreed, got it when masked", who.reveal, signatures)


# ---- closing -------------------------------------------------------------------------------------


def test_a_member_that_closed_signs_no_survivors(masked):
    who = masked.members[0]
    assert who.close() == who.close()
    refuses(who, "ended: The session was closed", who.agree, masked.everyone)


def test_a_member_that_signed_survivors_does_not_close(masked):
    who = masked.members[0]
    who.agree(masked.everyone)
    with pytest.raises(Refusal, match="one of the two"):
        who.close()
    who.end("The session took too long.")
    with pytest.raises(Refusal, match="one of the two"):
        who.close()


def test_a_member_whose_session_ended_can_close_it(masked):
    """A refusal wiped its shares, so its word is true."""
    who = masked.members[0]
    with pytest.raises(Refusal):
        who.agree(frozenset({0}))
    masked.roster.check_closed({0: who.close()}, quorum=False)


def test_a_member_without_a_roster_cannot_close():
    with pytest.raises(Refusal, match="before its roster"):
        member("client-00").close()


def test_a_threshold_of_closing_signatures_is_proof(masked):
    """Four of five are none; nor are five of which one is of another session or member."""
    who = masked.members[6]
    proof = {i: masked.members[i].close() for i in range(5)}
    who.check_closing_proof(proof)
    few = {i: proof[i] for i in range(4)}
    other = Session(N).share().members[4].close()
    for wrong in (few, {**few, 9: proof[4]}, {**few, 4: other}, {**few, 5: proof[4]}):
        with pytest.raises(Refusal):
            who.check_closing_proof(wrong)


# ---- secrets -------------------------------------------------------------------------------------


def reachable(root):
    """All byte strings that an object leads to; modules, classes and functions are not followed."""
    seen, found, todo = set(), set(), [root]
    while todo:
        each = todo.pop()
        if (
            id(each) in seen
            or isinstance(each, type)
            or type(each).__name__ in {"module", "dict_keys"}
        ):
            continue
        seen.add(id(each))
        if isinstance(each, bytes | bytearray):
            found.add(bytes(each))
        if type(each).__name__ != "function":
            todo += gc.get_referents(each)
        else:
            todo += [cell.cell_contents for cell in each.__closure__ or ()]
    return found


def test_the_search_finds_secrets_while_they_are_needed(session):
    who = session.members[0]
    assert bytes(who._secrets.pair_seed) in reachable(who)


@pytest.mark.parametrize("phase", ["ready", "shared", "received", "masked", "agreed", "revealed"])
def test_an_ended_session_leads_to_no_secret(phase):
    """Neither seeds nor held shares, in whatever phase it ends."""
    session = Session(N)
    who = session.members[0]
    secrets = {bytes(who._secrets.pair_seed), bytes(who._secrets.self_seed)}
    if phase != "ready":
        session.share()
    if phase not in {"ready", "shared"}:
        who.receive(session.everyone, session.sealed(0, session.everyone))
        secrets |= {bytes(share) for both in who._shares.values() for share in both}
        secrets |= {stream.key for stream in who._streams}
        assert secrets & reachable(who)
    if phase in {"masked", "agreed", "revealed"}:
        who.mask(np.zeros(session.layout.size_bytes, np.uint8), session.layout)
    if phase in {"agreed", "revealed"}:
        session.mask(who=range(1, N))
        signatures = session.agree()
        if phase == "revealed":
            who.reveal(signatures)
    assert who.phase == phase
    who.end("Over.")
    assert not secrets & reachable(who)


def test_seeds_are_wiped_once_they_are_not_needed(session):
    """After U2 a member has no seed of its own, and after its body was masked no mask."""
    who, everyone = session.members[0], session.everyone
    seeds = {bytes(who._secrets.pair_seed), bytes(who._secrets.self_seed)}
    seeds |= set(who._dealt.channels.values())
    assert len(seeds & reachable(who)) == N + 1
    who.receive(everyone, session.sealed(0, everyone))
    assert not seeds & reachable(who)
    masks = {stream.key for stream in who._streams}
    assert len(masks & reachable(who)) == N
    who.mask(np.zeros(session.layout.size_bytes, np.uint8), session.layout)
    assert not masks & reachable(who)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_secrets_have_no_copy(session, how):
    for each in (session.members[0], session.members[0]._secrets):
        with pytest.raises(TypeError, match="memory only"):
            how(each)


def test_nothing_secret_is_printed(session):
    who = session.members[0]
    who.receive(session.everyone, session.sealed(0, session.everyone))
    printed = repr((who, who._secrets, who._dealt, who._streams, session.dealt))
    for secret in (*who._shares[3], *(stream.key for stream in who._streams)):
        assert repr(bytes(secret))[2:-1] not in printed


# ---- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("u", sorted(keys._SMALL_ORDER))
def test_points_of_small_order_are_those_that_the_library_refuses(u):
    """Each gives zero with any key."""
    point = X25519PublicKey.from_public_bytes(u.to_bytes(32, "little"))
    with pytest.raises(ValueError, match="shared key"):
        X25519PrivateKey.generate().exchange(point)
    with pytest.raises(Refusal, match="small order"):
        keys.check_public_key(u.to_bytes(32, "little"), "x")


def test_a_copied_public_key_gives_another_mask():
    """Names are in the key: a member with a copy cannot cancel the mask of the first."""
    private = X25519PrivateKey.generate()
    one = keys.pair_mask_key(private, KEY, bytes(32), ("a", "b"))
    assert one == keys.pair_mask_key(private, KEY, bytes(32), ("b", "a"))
    assert one != keys.pair_mask_key(private, KEY, bytes(32), ("a", "c"))
