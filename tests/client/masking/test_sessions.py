"""Masked sessions of real agents over gRPC with TLS: sums, drop-outs, lost connections."""

import asyncio
import logging

import pytest

from fedloom.protocol.masking import member
from fedloom.protocol.task_kind import Kind
from support.agents import Adder
from support.masked_fleet import play
from support.masking_server import expected

PHASES = ("ready", "shares", "body", "agreement", "reveal")


def survivors(fleet, played):
    return [fleet.clients[name] for name in played.survivors]


async def whole(played):
    """Play a round to the end; returns values and words of its sum."""
    await played.offer()
    await played.ready()
    await played.share()
    await played.forward()
    await played.bodies()
    await played.agree()
    await played.reveal()
    found = played.unmasked()
    await played.finish()
    return found


def test_a_session_gives_the_sum_of_its_members(tmp_path):
    """Bit for bit as rational arithmetic has it, with weights and metrics in words."""

    async def scenario(fleet):
        played = fleet.round()
        assert await whole(played) == expected(fleet.clients.values())
        for name in fleet.names:
            await fleet.noted(name, "accepted", "has the sum")
        (said,) = fleet.entries("client-0", "sent")
        assert "a masked update, readable only as part of a sum of at least 3 devices" in said

    play(tmp_path, scenario)


def test_a_device_leaves_nothing_behind(tmp_path):
    """After a round, its outbox has no file of it."""

    async def scenario(fleet):
        await whole(fleet.round())
        for name in fleet.names:
            await fleet.noted(name, "accepted", "has the sum")
            assert not list((fleet.state(name) / "outbox").iterdir())

    play(tmp_path, scenario)


def test_a_header_says_nothing_of_the_update(tmp_path):
    """Weight, metrics and parts stay unset, and the size is the same for all."""

    async def scenario(fleet):
        played = fleet.round()
        await whole(played)
        for name, header in fleet.server.headers.items():
            assert header.client == name
            assert header.masking_session == played.roster.sid
            assert header.weight == 0
            named = {field.name for field, _ in header.ListFields()}
            assert named <= {
                *("task", "client", "model_digest", "size_bytes", "crc32c", "masking_session")
            }
        assert len({len(body) for body in fleet.server.bodies.values()}) == 1

    play(tmp_path, scenario)


@pytest.mark.parametrize("phase", PHASES)
def test_a_device_that_drops_out_changes_only_who_is_in_the_sum(tmp_path, phase):
    """Of four members, one may leave in any phase."""

    async def scenario(fleet):
        played, gone = fleet.round(), "client-3"
        left = fleet.names[:-1]

        def who(now):
            return left if PHASES.index(now) >= PHASES.index(phase) else fleet.names

        await played.offer()
        if phase == "ready":
            played.names = left
            await fleet.stop(gone)
        await played.ready()
        if phase == "shares":
            played.draw()
            await fleet.stop(gone)
        await played.share(*who("shares"))
        if phase == "body":
            await fleet.stop(gone)
            played.shared = frozenset(range(4))
        await played.forward(*who("body"))
        await played.bodies(*who("body"))
        if phase == "agreement":
            await fleet.stop(gone)
        await played.agree(*who("agreement"))
        if phase == "reveal":
            await fleet.stop(gone)
        await played.reveal(*who("reveal"))
        assert played.unmasked() == expected(survivors(fleet, played))

    play(tmp_path, scenario)


@pytest.mark.parametrize("phase", PHASES)
def test_a_lost_connection_changes_nothing(tmp_path, phase):
    """A device says its last message again, and a repeated step gets the same answer."""

    async def scenario(fleet):
        played, name = fleet.round(), "client-1"

        async def cut(now):
            if phase == now:
                await fleet.server.cut(name)
                await fleet.server.attends(name)

        await played.offer()
        await played.ready()
        await cut("ready")
        if phase == "ready":
            first = played.adverts[name].to_bytes()
            await played.ready(name)  # again
            assert played.adverts[name].to_bytes() == first
        await played.share()
        await cut("shares")
        if phase == "shares":
            first = played.dealt[1]
            await played.share(name)
            assert played.dealt[1] == first
        await played.forward()
        await played.bodies()
        await cut("body")
        await played.agree()
        await cut("agreement")
        if phase == "agreement":
            first = played.agreements[1]
            await played.agree(name)
            assert played.agreements[1] == first  # ECDSA is random: it was signed once
        await played.reveal()
        await cut("reveal")
        if phase == "reveal":
            first = played.reveals[1]
            await played.reveal(name)
            assert played.reveals[1] == first
        assert played.unmasked() == expected(fleet.clients.values())

    play(tmp_path, scenario)


def test_an_upload_goes_on_where_it_was_cut(tmp_path):
    """The masked bytes are the same: they were made once."""

    async def scenario(fleet):
        fleet.server.cut_at = 40
        assert await whole(fleet.round()) == expected(fleet.clients.values())

    play(tmp_path, scenario)


def test_an_evaluation_is_a_body_of_words(tmp_path):
    """Without values, metrics and examples are summed alone."""

    class Evaluates(Adder):
        def evaluate(self, params, task):
            return self.num_examples, {"step": self.step}

    async def scenario(fleet):
        played = fleet.round(kind=Kind.EVALUATE)
        values, words = await whole(played)
        assert values == []
        examples = sum(each.num_examples for each in fleet.clients.values())
        of_step = expected(fleet.clients.values())[1]["training.step"]
        assert words == {
            "evaluation.examples": examples,
            "evaluation.step.examples": examples,
            "evaluation.step": of_step,
        }

    clients = {f"client-{i}": Evaluates(0.5 + i, i + 2) for i in range(3)}
    play(tmp_path, scenario, clients=clients)


@pytest.mark.parametrize("sum_bits", [16, 24, 64])
def test_other_widths_of_sums(tmp_path, sum_bits):
    """Sums of exactly representable values are exact at every width."""

    async def scenario(fleet):
        played = fleet.round(sum_bits=sum_bits, exponent=8)
        values, words = await whole(played)
        assert values == [value // 16 for value in expected(fleet.clients.values())[0]]
        assert words == expected(fleet.clients.values())[1]

    play(tmp_path, scenario)


def test_logs_and_disks_never_have_a_secret(tmp_path, monkeypatch, caplog):
    """Nor the journal: seeds, channel keys and shares, in bytes, hex and decimals."""
    secrets, own, opened = [], member.MemberSecrets, member.open_shares

    def make(random):
        made = own(random)
        secrets.extend((bytes(made.pair_seed), bytes(made.self_seed)))
        secrets.append(made.channel.private_bytes_raw())
        return made

    def open_shares(*args):
        found = opened(*args)
        secrets.extend(bytes(share) for both in found.values() for share in both)
        return found

    monkeypatch.setattr(member, "MemberSecrets", make)
    monkeypatch.setattr(member, "open_shares", open_shares)
    caplog.set_level(logging.DEBUG)

    async def scenario(fleet):
        await whole(fleet.round())
        for name in fleet.names:
            await fleet.noted(name, "accepted", "has the sum")

    play(tmp_path, scenario)
    assert len(secrets) == 4 * 3 + 4 * 4 * 2
    written = [p.read_bytes() for p in (tmp_path / "devices").rglob("*") if p.is_file()]
    for secret in secrets:
        for text in (secret.hex(), str(int.from_bytes(secret, "big")), repr(secret)):
            assert text not in caplog.text
            assert not any(text.encode() in raw for raw in written)
        assert not any(secret in raw for raw in written)


def test_progress_says_how_far_a_training_is_and_no_loss(tmp_path):
    """Also where the training code reports one."""

    class Reports(Adder):
        def train(self, params, task):
            task.progress(0.5, loss=1.25)
            return super().train(params, task)

    async def scenario(fleet):
        played = fleet.round()
        await played.offer()
        for name in fleet.names:
            progress = await fleet.server.hears(name, "progress")
            assert not progress.HasField("loss")

    play(tmp_path, scenario, clients={"client-0": Reports()})


def test_a_device_that_knows_no_done_ends_its_session_in_time(tmp_path):
    """Secrets are wiped `session_s` after the roster."""

    async def scenario(fleet):
        played = fleet.round(session_s=0.5)
        await played.offer()
        await played.ready()
        await played.share()
        for name in fleet.names:
            await fleet.noted(name, "withdrawn", "did not end in time")
        played.shared = frozenset(played.dealt)
        await played.step("client-0", shares=played.forwarded("client-0"))
        await fleet.noted("client-0", "refused", "no secrets of")
        await asyncio.sleep(0)
        assert not fleet.server.bodies

    play(tmp_path, scenario)
