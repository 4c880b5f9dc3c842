"""A server that lies to devices: each refuses in words in its journal, and nothing leaves."""

import asyncio
import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedloom.client import SliceOf
from fedloom.client.state.store import ClientStore
from fedloom.protocol import masking
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.masking.keys import MemberSecrets, pair_private
from fedloom.protocol.trust.identity import (
    build_csr,
    chain_pem,
    generate_key,
    key_from_pem,
    peer_from_pem,
)
from fedloom.protocol.trust.signed_bytes import to_sign
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.pki.authority import Authority
from fedloom.strategies import Slice
from support.agents import Adder
from support.masked_fleet import play
from support.masking_server import PARAMS, POLICY, RUN, PlayedRound, expected, masked_task
from support.patience import PATIENCE_S


async def declined(fleet, task, change=None, name="client-0"):
    """Offer a task that the device declines; returns its reason."""
    await fleet.server.offer(name, task, change)
    reply = await fleet.server.hears(name, "offer_reply")
    assert not reply.accepted
    return reply.reason


async def joined(fleet, **settings):
    """A round whose members have shared their secrets."""
    played = fleet.round(**settings)
    await played.offer()
    await played.ready()
    await played.share()
    played.shared = frozenset(played.dealt)
    return played


async def masked(fleet):
    """A round whose bodies are all there."""
    played = await joined(fleet)
    await played.forward()
    await played.bodies()
    return played


def nothing_left(fleet, *names):
    for name in names or fleet.names:
        assert name not in fleet.server.bodies
        assert name not in fleet.server.parts
        assert not fleet.entries(name, "sent")


# ---- offers --------------------------------------------------------------------------------------


def private(task, weighting=fleet_pb2.WEIGHTING_UNIFORM, **fields):
    """Ask for noise of the session."""
    task.weighting = weighting
    task.privacy.MergeFrom(fleet_pb2.Privacy(clip=1.0, noise_multiplier=1.0, **fields))


def private_with_steps(task):
    private(task)
    task.rule.name = "fednova"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: setattr(t, "seed", t.seed + 1), "run_seed"),
        (lambda t: setattr(t.masking, "site", "north"), "masking.site"),
        (lambda t: setattr(t.masking, "group", 200), "group"),
        (lambda t: setattr(t.masking, "group", 2), "group"),
        (lambda t: setattr(t.masking, "attempt", 9), "attempt"),
        (lambda t: setattr(t.masking, "sum_bits", 8), "sum_bits"),
        (lambda t: setattr(t.masking, "exponent", 5000), "exponent"),
        (lambda t: setattr(t.masking, "session_s", float("inf")), "session_s"),
        (lambda t: setattr(t.masking, "max_examples", 0), "max_examples"),
        (lambda t: t.masking.metrics.update({"loss": float("nan")}), "bounds of metrics"),
        (lambda t: t.ClearField("limits"), "limits"),
        (lambda t: setattr(t.train, "tensor_share", 0.5), "whole updates"),
        (lambda t: t.train.widths.append(1.5), "widths above 0 and at most 1"),
        (lambda t: setattr(t.compression, "codec", "int8"), "compression"),
        (lambda t: private(t, fleet_pb2.WEIGHTING_EXAMPLES), "weights by examples"),
        (lambda t: private(t, count_within=True), "within_clip"),
        (private_with_steps, "steps"),
        (lambda t: t.MergeFromString(b"\xfa\x3f\x01x"), "unknown fields"),
        (lambda t: t.masking.MergeFromString(b"\xfa\x3f\x01x"), "unknown fields"),
    ],
)
def test_an_offer_that_members_could_not_share_is_declined(tmp_path, change, words):
    """Before anything is trained."""

    async def scenario(fleet):
        assert words in await declined(fleet, masked_task(fleet.server), change)

    play(tmp_path, scenario, n=1)


def test_noise_that_is_too_coarse_for_its_claim_is_not_sent(tmp_path):
    """The exponent is the server's: with large steps, a share would be no discrete Gaussian."""

    async def scenario(fleet):
        played = fleet.round(exponent=1)
        private(played.task)
        played.terms = masking.terms_of(played.task, "tests")
        await played.offer()
        await played.ready()
        await played.share()
        await played.forward(*(fleet.names))
        for name in fleet.names:
            await fleet.noted(name, "declined", "noise of at least 4 steps")
        nothing_left(fleet)

    play(tmp_path, scenario)


def test_sessions_below_the_owners_floor_are_declined(tmp_path):
    """The run's own bound is below it, so no roster could meet it."""

    async def scenario(fleet):
        assert "16 members" in await declined(fleet, masked_task(fleet.server, group=8))

    play(tmp_path, scenario, n=1, policy="")


def test_an_owner_may_require_masks(tmp_path):
    """A task in clear is declined then."""

    async def scenario(fleet):
        clear = masked_task(fleet.server)
        clear.ClearField("masking")
        assert "masking.required" in await declined(fleet, clear)

    play(tmp_path, scenario, n=1, policy=f"{POLICY}required = true\n")


def test_what_was_to_be_masked_is_never_sent_in_clear(tmp_path):
    """A task of the same run without masks is declined, even before the device was ready."""

    async def scenario(fleet):
        await fleet.server.offer("client-0", masked_task(fleet.server))
        await fleet.server.hears("client-0", "ready")
        await fleet.server.withdraw("client-0")
        await fleet.noted("client-0", "withdrawn", "a test")
        for number in (1, 2):
            clear = masked_task(fleet.server, number=number)
            clear.ClearField("masking")
            assert "none of it is sent in clear" in await declined(fleet, clear)
        nothing_left(fleet)

    play(tmp_path, scenario, n=1)


def test_a_task_in_clear_that_waited_while_its_run_was_masked_is_not_sent(tmp_path):
    """It was accepted before the run had a masked update here; that update came first."""

    class Waits(Adder):
        go = threading.Event()

        def train(self, params, task):
            if task.run != RUN:
                assert self.go.wait(PATIENCE_S)
            return super().train(params, task)

    async def scenario(fleet):
        def clear(number, run=RUN):
            task = masked_task(fleet.server, number=number)
            task.ClearField("masking")
            task.key.run = run
            return task

        for task in (clear(9, "other"), masked_task(fleet.server), clear(2)):
            await fleet.server.offer("client-0", task)
            assert (await fleet.server.hears("client-0", "offer_reply")).accepted
        await asyncio.to_thread(Waits.go.set)
        await fleet.noted("client-0", "declined", "none of it is sent in clear")
        assert not [t for t in fleet.entries("client-0", "sent") if RUN in t]

    play(tmp_path, scenario, clients={"client-0": Waits()})


@pytest.mark.parametrize(
    "change",
    [
        lambda t: setattr(t.train, "learning_rate", 0.0),
        lambda t: t.config["x"].CopyFrom(fleet_pb2.Scalar(int_value=1)),
        lambda t: setattr(t.received, "digest", t.model.digest),
        lambda t: setattr(t.limits, "max_norm", 1e3),
        lambda t: setattr(t.masking, "exponent", 3),
        lambda t: setattr(t, "evaluate", True),
    ],
)
def test_a_task_that_differs_between_members_joins_no_session(tmp_path, change):
    """Members with another core have another pid, and refuse each other's adverts."""

    async def scenario(fleet):
        played, odd = fleet.round(), "client-2"
        for name in fleet.names:
            await fleet.server.offer(name, played.task, change if name == odd else None)
        await played.ready()
        listed = played.listed()
        for name in fleet.names:
            await played.step(name, ready_list=listed)
        for name in fleet.names:
            await fleet.noted(name, "refused", "this task and this try")
            assert (await fleet.server.hears(name, "task_failed")).reason == "masking"
        nothing_left(fleet)

    play(tmp_path, scenario)


def test_an_update_of_another_task_is_not_masked_for_this_one(tmp_path):
    """Trained at one rate, offered again at another: it is trained anew.

    Else a server could have one member's update in a sum of members that trained at rate 0.
    """

    class Counts(Adder):
        trained = 0

        def train(self, params, task):
            self.trained += 1
            return super().train(params, task)

    async def scenario(fleet):
        client = fleet.clients["client-0"]
        await fleet.server.offer("client-0", masked_task(fleet.server))
        await fleet.server.hears("client-0", "ready")
        await fleet.server.offer("client-0", masked_task(fleet.server, attempt=2))
        await fleet.server.hears("client-0", "ready", attempt=2)
        assert client.trained == 1  # the same of all members: the update stays
        other = masked_task(fleet.server, attempt=3)
        other.train.learning_rate = 0.0
        await fleet.server.offer("client-0", other)
        await fleet.server.hears("client-0", "ready", attempt=3)
        assert client.trained == 2

    play(tmp_path, scenario, clients={"client-0": Counts()})


# ---- the list of ready devices -------------------------------------------------------------------


def changed(played, name, **fields):
    """The adverts with one that the server changed."""
    return [
        replace(each, **fields) if each.name == name else each for each in played.adverts.values()
    ]


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (lambda p: changed(p, "client-1", pair_key=bytes(31) + b"\x07"), "signature"),
        (lambda p: changed(p, "client-1", channel_key=bytes(32)), "signature"),
        (lambda p: changed(p, "client-1", nonce=bytes(32)), "signature"),
        (lambda p: changed(p, "client-1", signature=b""), "signature"),
        (lambda p: changed(p, "client-1", chain=b""), "certificates of client-1"),
        (lambda p: changed(p, "client-1", coverage="0.5"), "signature"),
        (lambda p: [*p.adverts.values(), p.adverts["client-1"]], "different names"),
        (lambda p: [a for n, a in p.adverts.items() if n != "client-0"], "own advert"),
        (lambda p: [a for n, a in p.adverts.items() if n < "client-2"], "masking.min_group"),
    ],
)
def test_a_false_list_of_ready_devices_is_refused(tmp_path, forge, words):
    """And the device takes no part in this try."""

    async def scenario(fleet):
        played, victim = fleet.round(), "client-0"
        await played.offer()
        await played.ready()
        await played.step(victim, ready_list=played.listed(forge(played)))
        await fleet.noted(victim, "refused", words)
        assert (await fleet.server.hears(victim, "task_failed")).reason == "masking"
        nothing_left(fleet)

    play(tmp_path, scenario)


def test_members_of_another_authority_are_refused(tmp_path):
    """Whoever forwards adverts cannot make members up."""

    async def scenario(fleet):
        played, victim = fleet.round(), "client-0"
        await played.offer()
        await played.ready()
        other = Authority.create(tmp_path / "pki-2", "tests", datetime.now(UTC))
        key = generate_key()
        chain, peer = other.issue_client(build_csr(key), "client-9", 3600.0, datetime.now(UTC))
        sybil = masking.Member(
            played.terms, name="client-9", serial=peer.serial, sign=masking.signer(key), chain=chain
        )
        listed = played.listed([*played.adverts.values(), sybil.advert])
        await played.step(victim, ready_list=listed)
        await fleet.noted(victim, "refused", "certificates of client-9")
        nothing_left(fleet)

    play(tmp_path, scenario)


def copies_a_key(played, fields):
    """A second member with another's key would share masks with it."""
    fields["pair_key"] = played.adverts["client-1"].pair_key


def copies_the_victims_key(played, fields):
    fields["channel_key"] = played.adverts["client-0"].channel_key


def has_one_key_for_both(_, fields):
    fields["channel_key"] = fields["pair_key"]


def has_a_key_of_small_order(_, fields):
    fields["pair_key"] = (1).to_bytes(32, "little")


def is_of_another_class(_, fields):
    fields["coverage"] = "0.5"


def has_the_victims_name(_, fields):
    fields["name"] = "client-0"


@pytest.mark.parametrize(
    ("lies", "words"),
    [
        (copies_a_key, "different names and keys"),
        (copies_the_victims_key, "different names and keys"),
        (has_one_key_for_both, "different names and keys"),
        (has_a_key_of_small_order, "small order"),
        (is_of_another_class, "the classes"),
        (has_the_victims_name, "certificate"),
    ],
)
def test_a_certified_member_that_lies_is_refused(tmp_path, lies, words):
    """The server can enrol devices of its own; their adverts are checked like all others."""

    async def scenario(fleet):
        played, victim = fleet.round(), "client-0"
        await played.offer()
        await played.ready()
        sybil = advert_of_a_sybil(fleet, played, lies)
        await played.step(victim, ready_list=played.listed([*played.adverts.values(), sybil]))
        await fleet.noted(victim, "refused", words)
        nothing_left(fleet)

    play(tmp_path, scenario)


def advert_of_a_sybil(fleet, played, lies):
    """The advert of a device of the server's own."""
    key = generate_key()
    chain, peer = fleet.server.authority.issue_client(
        build_csr(key), "sybil", 3600.0, datetime.now(UTC)
    )
    secrets = MemberSecrets()
    pair = pair_private(secrets.pair_seed, played.terms.pid)
    fields = {
        "pid": played.terms.pid,
        "name": "sybil",
        "serial": peer.serial,
        "coverage": "",
        "channel_key": secrets.channel.public_key().public_bytes_raw(),
        "pair_key": pair.public_key().public_bytes_raw(),
        "self_commitment": bytes(32),
        "nonce": bytes(32),
        "chain": chain,
    }
    lies(played, fields)
    advert = masking.Advert(**fields)
    return replace(advert, signature=masking.signer(key)(to_sign("secagg.ready", advert.digest())))


def with_widths(fleet, *widths):
    """A round whose devices train narrow models."""
    played = fleet.round()
    played.task.train.widths.extend(widths)
    played.terms = masking.terms_of(played.task, "tests")
    return played


@pytest.mark.parametrize("widths", [(0.5, 1.0), (1.0, 0.5)])
def test_a_member_of_another_width_that_states_this_ones_class_is_refused(tmp_path, widths):
    """A server that chose who has which class could put its own devices into any session."""

    async def scenario(fleet):
        played = with_widths(fleet, *widths)
        width = played.terms.width
        victim = next(name for name in fleet.names if width(name) != width("sybil"))
        await played.offer()
        await played.ready()
        stated = {"coverage": played.adverts[victim].coverage}
        sybil = advert_of_a_sybil(fleet, played, lambda _, fields: fields.update(stated))
        await played.step(victim, ready_list=played.listed([played.adverts[victim], sybil]))
        await fleet.noted(victim, "refused", "as the name sybil has it")
        nothing_left(fleet)

    play(tmp_path, scenario)


class Halves(Adder):
    """Trains the first rows of each tensor."""

    def train(self, params, task):
        new, examples, metrics = super().train(params, task)
        cut = {name: SliceOf(a[:1], _first_row(a)) for name, a in new.items()}
        return cut, examples, metrics


def _first_row(array):
    return ((0, 1), *((0, extent) for extent in array.shape[1:]))


def test_a_narrow_device_states_its_slices_and_one_of_the_whole_width_sends_none(tmp_path):
    """A device whose width is 1 has no part of a model to send."""

    async def scenario(fleet):
        played = with_widths(fleet, 0.5, 1.0)
        narrow = [name for name in fleet.names if played.terms.width(name) < 1]
        assert 0 < len(narrow) < len(fleet.names)
        await played.offer()
        await played.ready(*narrow)
        slices = {("delta", n): Slice(_first_row(a)) for n, a in PARAMS.items()}
        wanted = masking.width_class(0.5, slices)
        assert {advert.coverage for advert in played.adverts.values()} == {wanted}
        for name in set(fleet.names) - set(narrow):
            assert (await fleet.server.hears(name, "task_failed")).reason == "unfit"

    play(tmp_path, scenario, clients={f"client-{i}": Halves(0.25 + i / 8, i + 1) for i in range(4)})


def test_one_certified_key_under_several_names_is_refused(tmp_path):
    """One peer and the authority together could fill a session, although peers are pinned."""

    async def scenario(fleet):
        played, victim = fleet.round(), "client-0"
        await played.offer()
        await played.ready()
        pem, _ = ClientStore(fleet.state("client-1")).identity()
        key = key_from_pem(pem)
        chain, peer = fleet.server.authority.issue_client(
            build_csr(key), "sybil", 3600.0, datetime.now(UTC)
        )
        sybil = masking.Member(
            played.terms, name="sybil", serial=peer.serial, sign=masking.signer(key), chain=chain
        )
        await played.step(
            victim, ready_list=played.listed([*played.adverts.values(), sybil.advert])
        )
        await fleet.noted(victim, "refused", "one key under several names")
        nothing_left(fleet)

    play(tmp_path, scenario)


def test_only_peers_that_the_owner_lists_are_accepted(tmp_path):
    """By public key: whoever runs the authority can issue any name."""

    async def scenario(fleet):
        played, victim = fleet.round(), "client-0"
        await played.offer()
        await played.ready()
        await played.step(victim, ready_list=played.listed())
        await fleet.noted(victim, "refused", "masking.peers")
        nothing_left(fleet)

    keys = tmp_path / "devices" / "peers.pem"
    keys.parent.mkdir()
    key = generate_key().public_key()
    keys.write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    play(tmp_path, scenario, policy=f'{POLICY}peers = "peers.pem"\n')


def test_a_list_below_the_owners_floor_is_refused(tmp_path):
    """A short list could be one that the server chose."""

    async def scenario(fleet):
        played, victim = fleet.round(), "client-0"
        await played.offer()
        await played.ready()
        await played.step(victim, ready_list=played.listed())
        await fleet.noted(victim, "refused", "masking.min_ready")
        nothing_left(fleet)

    play(tmp_path, scenario, policy=f"{POLICY}min_ready = 5\n")


@pytest.mark.parametrize(
    "other", [{"federation": "others"}, {"run": "other"}, {"round": 2}, {"attempt": 2}], ids=str
)
def test_adverts_of_something_else_are_refused(tmp_path, other):
    """Replayed across federations, runs, rounds or tries: they are for another pid."""

    async def scenario(fleet):
        played, victim = fleet.round(), "client-0"
        await played.offer()
        await played.ready()
        for name in fleet.names[1:]:
            pem, _ = ClientStore(fleet.state(name)).identity()
            played.adverts[name] = masking.Member(
                replace(played.terms, **other),
                name=name,
                serial=peer_from_pem(pem).serial,
                sign=masking.signer(key_from_pem(pem)),
                chain=chain_pem(pem),
            ).advert
        await played.step(victim, ready_list=played.listed())
        await fleet.noted(victim, "refused", "this task and this try")
        nothing_left(fleet)

    play(tmp_path, scenario)


def test_a_file_that_is_no_list_is_refused(tmp_path):
    """Whatever its digest."""

    async def scenario(fleet):
        played, victim = fleet.round(), "client-0"
        await played.offer()
        await played.ready()
        file = fleet.server.add(b"\xff no list")
        ref = fleet_pb2.ModelRef(digest=file.digest, size_bytes=file.size_bytes)
        await played.step(victim, ready_list=ref)
        await fleet.noted(victim, "refused", "list of ready devices")
        nothing_left(fleet)

    play(tmp_path, scenario)


# ---- sets of members -----------------------------------------------------------------------------


def test_a_second_roster_is_refused(tmp_path):
    """The first one counts, and the session ends here."""

    async def scenario(fleet):
        played, victim = await joined(fleet), "client-0"
        fewer = [each for name, each in played.adverts.items() if name != "client-3"]
        await played.step(victim, ready_list=played.listed(fewer))
        await fleet.noted(victim, "refused", "a second, other one")
        await played.step(victim, shares=played.forwarded(victim))
        await fleet.noted(victim, "refused", "that ended")
        nothing_left(fleet)

    play(tmp_path, scenario)


@pytest.mark.parametrize("shared", [{0}, {0, 1}, {1, 2, 3}], ids=str)
def test_a_set_of_sharing_members_that_is_too_small_is_refused(tmp_path, shared):
    """Told U2 = {self}, a device would send its update under its own mask alone."""

    async def scenario(fleet):
        played, victim = await joined(fleet), "client-0"
        await played.step(victim, shares=played.forwarded(victim, frozenset(shared)))
        await fleet.noted(victim, "refused", "U2" if 0 in shared else "this one in it")
        nothing_left(fleet)

    play(tmp_path, scenario)


def test_a_second_set_of_sharing_members_is_refused(tmp_path):
    """After the body has left, nothing more is signed."""

    async def scenario(fleet):
        played, victim = await masked(fleet), "client-0"
        other = played.forwarded(victim, frozenset({0, 1, 2}))
        await played.step(victim, shares=other)
        await fleet.noted(victim, "refused", "a second, other one")
        bitmap = masking.to_bitmap(played.masked, 4)
        await played.step(victim, survivors=bitmap)
        await fleet.noted(victim, "refused", "that ended")

    play(tmp_path, scenario)


def test_shares_that_were_changed_are_complained_about(tmp_path):
    """And masked against all the same: the dealer is convicted, not the session."""

    async def scenario(fleet):
        played, victim = await joined(fleet), "client-0"
        forwarded = played.forwarded(victim)
        forwarded.shares[1] = bytes([forwarded.shares[1][0] ^ 1]) + forwarded.shares[1][1:]
        await played.step(victim, shares=forwarded)
        assert await played.hears(victim, "complaint") == masking.to_bitmap({1}, 4)
        await fleet.server.until(lambda: victim in fleet.server.bodies)

    play(tmp_path, scenario)


@pytest.mark.parametrize("masked_set", [{0}, {0, 1}, {1, 2, 3}], ids=str)
def test_survivors_that_are_too_few_are_not_signed(tmp_path, masked_set):
    """A sum of fewer than t could be taken apart."""

    async def scenario(fleet):
        played, victim = await masked(fleet), "client-0"
        await played.step(victim, survivors=masking.to_bitmap(masked_set, 4))
        await fleet.noted(victim, "refused", "U3" if 0 in masked_set else "this member among")
        assert not [m for m in fleet.server.said[victim] if m.masking.HasField("agreement")]

    play(tmp_path, scenario)


def test_one_set_of_survivors_is_signed(tmp_path):
    """Two would let a server mix reveals below t."""

    async def scenario(fleet):
        played, victim = await masked(fleet), "client-0"
        await played.step(victim, survivors=masking.to_bitmap({0, 1, 2}, 4))
        await played.hears(victim, "agreement")
        await played.step(victim, survivors=masking.to_bitmap({0, 1, 2, 3}, 4))
        await fleet.noted(victim, "refused", "a second, other one")

    play(tmp_path, scenario)


def test_nothing_is_revealed_without_a_quorum_over_the_same_sets(tmp_path):
    """Signatures of halves that were told different survivors do not count."""

    async def scenario(fleet):
        played, victim = await masked(fleet), "client-0"
        for name in ("client-0", "client-1"):
            await played.step(name, survivors=masking.to_bitmap({0, 1, 2}, 4))
            played.agreements[played.index(name)] = await played.hears(name, "agreement")
        await played.step("client-2", survivors=masking.to_bitmap({0, 1, 2, 3}, 4))
        played.agreements[2] = await played.hears("client-2", "agreement")
        signed = fleet_pb2.Signatures(by_member=played.agreements)
        await played.step(victim, signatures=signed)
        await fleet.noted(victim, "refused", "client-2's signature")
        assert not [m for m in fleet.server.said[victim] if m.masking.HasField("reveal")]

    play(tmp_path, scenario)


# ---- giving a session up -------------------------------------------------------------------------


def test_a_closed_session_agrees_to_nothing(tmp_path):
    """AGREE after CLOSED is refused: a member signs one of the two."""

    async def scenario(fleet):
        played, victim = await masked(fleet), "client-0"
        await played.close(victim)
        await played.step(victim, survivors=masking.to_bitmap(played.masked, 4))
        await fleet.noted(victim, "refused", "that ended")
        assert not [m for m in fleet.server.said[victim] if m.masking.HasField("agreement")]

    play(tmp_path, scenario)


@pytest.mark.parametrize("revealed", [False, True])
def test_a_feigned_abandonment_closes_nothing(tmp_path, revealed):
    """A member that signed survivors does not sign that it never reveals, and masks no more."""

    async def scenario(fleet):
        played, victim = await masked(fleet), "client-0"
        await played.agree()
        if revealed:
            await played.reveal()
        await played.step(victim, abandoned="too few")
        await fleet.noted(victim, "refused", "signed its survivors")
        again = masked_task(fleet.server, attempt=2)
        assert "not closed" in await declined(fleet, again)
        assert not [m for m in fleet.server.said[victim] if m.masking.HasField("closing")]

    play(tmp_path, scenario)


def test_an_update_that_has_left_is_not_masked_again_without_proof(tmp_path):
    """An offer with a new try is declined, however new; so is one of a later round's model."""

    async def scenario(fleet):
        played, victim = await masked(fleet), "client-0"
        await played.close(victim)
        again = masked_task(fleet.server, attempt=2)
        assert "not closed" in await declined(fleet, again)
        later = masked_task(fleet.server, number=2)
        assert "masking.repeats" in await declined(fleet, later)
        await played.step(victim, closed=fleet_pb2.Signatures(by_member=played.closings))
        await fleet.noted(victim, "refused", "at least 3 members")
        assert "not closed" in await declined(fleet, again)

    play(tmp_path, scenario)


def test_an_owner_may_allow_repeats(tmp_path):
    """Then another round of the same model is masked, and a third one is not."""

    async def scenario(fleet):
        for number in (1, 2):
            played = await joined(fleet, number=number)
            await played.forward()
            await played.bodies()
            await played.agree()
            await played.reveal()
            await played.finish()
            for name in fleet.names:
                await fleet.noted(name, "accepted", f"update for round {number}")
            fleet.server.bodies.clear()
            fleet.server.parts.clear()
        third = masked_task(fleet.server, number=3)
        assert "masking.repeats" in await declined(fleet, third)

    play(tmp_path, scenario, policy=f"{POLICY}repeats = 1\n", n=3)


def test_a_proof_lets_the_update_be_masked_again(tmp_path):
    """T members signed that they reveal nothing: a new try has fresh keys and trains again."""

    async def scenario(fleet):
        played = await masked(fleet)
        await played.close()
        await played.proof()
        for name in fleet.names:
            await fleet.noted(name, "withdrawn", "counts as not sent")
        before = dict(fleet.server.bodies)
        fleet.server.bodies.clear()
        fleet.server.parts.clear()
        second = PlayedRound(fleet.server, masked_task(fleet.server, attempt=2), fleet.names)
        await second.offer()
        await second.ready()
        assert {second.adverts[n].pair_key for n in fleet.names}.isdisjoint(
            {played.adverts[n].pair_key for n in fleet.names}
        )
        await second.share()
        await second.forward()
        await second.bodies()
        assert all(fleet.server.bodies[name] != before[name] for name in fleet.names)

    play(tmp_path, scenario)


def test_a_proof_with_an_offer_behind_it_is_heard_first(tmp_path):
    """The offer of the next try may come while the proof is being checked."""

    async def scenario(fleet):
        played, name = await masked(fleet), "client-0"
        await played.close()
        await played.proof(name)
        await fleet.server.offer(name, masked_task(fleet.server, attempt=2))
        reply = await fleet.server.hears(name, "offer_reply")
        assert reply.accepted, reply.reason
        await fleet.server.hears(name, "ready", attempt=2)

    play(tmp_path, scenario)


def test_the_same_try_is_not_taken_twice(tmp_path):
    """After a withdrawal its keys are gone; the server must begin another try."""

    async def scenario(fleet):
        task = masked_task(fleet.server)
        await fleet.server.offer("client-0", task)
        await fleet.server.hears("client-0", "ready")
        await fleet.server.withdraw("client-0")
        await fleet.noted("client-0", "withdrawn", "a test")
        assert "expected a later try" in await declined(fleet, task)

    play(tmp_path, scenario, n=1)


def test_a_withdrawal_does_not_end_a_session_whose_body_has_left(tmp_path):
    """It would be a way to close one without a proof."""

    async def scenario(fleet):
        played, name = await masked(fleet), "client-0"
        await fleet.server.withdraw(name)
        await fleet.noted(name, "withdrawn", "the session goes on")
        await played.agree()

    play(tmp_path, scenario)


def test_a_rejected_body_ends_the_session_for_the_device(tmp_path):
    """It signs no survivors, and may still sign that it gave up."""

    async def scenario(fleet):
        played, victim = await joined(fleet), "client-0"
        fleet.server.refuses[victim] = Refusal(Code.ROUND_CLOSED, "too late")
        await played.forward()
        await fleet.noted(victim, "rejected", "too late")
        await played.step(victim, survivors=masking.to_bitmap(frozenset(range(4)), 4))
        await fleet.noted(victim, "refused", "that ended")
        await played.close(victim)

    play(tmp_path, scenario)


def test_a_session_given_up_before_the_upload_needs_no_second_training(tmp_path):
    """Nothing has left: the update stays, and is masked under fresh keys in the next try."""

    class Counts(Adder):
        trained = 0

        def train(self, params, task):
            self.trained += 1
            return super().train(params, task)

    async def scenario(fleet):
        played = await joined(fleet)
        await played.close()
        for name in fleet.names:
            await fleet.noted(name, "withdrawn", "was given up")
        second = PlayedRound(fleet.server, masked_task(fleet.server, attempt=2), fleet.names)
        await second.offer()
        await second.ready()
        await second.share()
        await second.forward()
        await second.bodies()
        await second.agree()
        await second.reveal()
        assert second.unmasked() == expected(fleet.clients.values())
        assert [each.trained for each in fleet.clients.values()] == [1, 1, 1]

    clients = {f"client-{i}": Counts(0.5 + i, i + 1) for i in range(3)}
    play(tmp_path, scenario, clients=clients)


# ---- updates -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (Adder(100.0), "magnitude_too_large"),
        (Adder(float("nan")), "finite"),
        (Adder(1.0, 1000), "weight_out_of_range"),
    ],
)
def test_an_update_beyond_the_limits_is_unfit(tmp_path, client, words):
    """The server hears the word alone, the owner why."""

    async def scenario(fleet):
        await fleet.server.offer("client-0", masked_task(fleet.server))
        assert (await fleet.server.hears("client-0", "task_failed")).reason in ("unfit", "training")
        texts = fleet.entries("client-0", "declined") + fleet.entries("client-0", "failed")
        assert any(words in text for text in texts), texts
        nothing_left(fleet)

    play(tmp_path, scenario, clients={"client-0": client})


def test_what_training_code_raises_stays_on_the_device(tmp_path):
    """Of a masked task the server hears the kind alone."""

    class Breaks(Adder):
        def train(self, params, task):
            raise ValueError("row 17 is bad")

    async def scenario(fleet):
        await fleet.server.offer("client-0", masked_task(fleet.server))
        assert (await fleet.server.hears("client-0", "task_failed")).reason == "training"
        await fleet.noted("client-0", "failed", "row 17")

    play(tmp_path, scenario, clients={"client-0": Breaks()})


def test_an_owner_who_keeps_a_tensor_takes_no_part(tmp_path):
    """All members cover the same: a missing tensor would show who lacks it."""

    async def scenario(fleet):
        await fleet.server.offer("client-0", masked_task(fleet.server))
        assert (await fleet.server.hears("client-0", "task_failed")).reason == "unfit"
        await fleet.noted("client-0", "declined", "'b'")
        nothing_left(fleet)

    play(tmp_path, scenario, n=1, policy=f'{POLICY}[leaves]\nnever = ["b"]\n')


def test_steps_without_a_session_are_refused(tmp_path):
    """Also with a run id that is no name."""

    async def scenario(fleet):
        await fleet.server.step("client-0", survivors=b"\x01")
        await fleet.noted("client-0", "refused", "no secrets of")
        key = fleet_pb2.TaskKey(run="../x", round=1)
        await fleet.server.send("client-0", masking=fleet_pb2.MaskingStep(task=key))
        await fleet.noted("client-0", "refused", "run id is malformed")
        await asyncio.sleep(0)
        assert RUN not in str(fleet.server.said)

    play(tmp_path, scenario, n=1)
