"""The promoted model on devices: signed, downloaded once, never replaced by an older one."""

import asyncio
import json
import logging
import os
import subprocess
import sys

import numpy as np
import pytest

from fedloom.client import Model
from fedloom.client.promoted_model import FOLDER, PromotedModels, Promotion
from fedloom.protocol.errors import Code, IntegrityError, Refusal, UsageError
from fedloom.protocol.tensors.container import read_params, write_file
from fedloom.protocol.transport import methods
from fedloom.protocol.trust.signing import PROMOTED, Signer
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.fleet import promoted_model as servers
from support.agents import Adder, Agents, submit
from support.federation import Federation
from support.patience import PATIENCE_S

pytestmark = pytest.mark.e2e

ZEROS = {"w": np.zeros((40, 3), np.float32), "b": np.zeros(5, np.float32)}


def play(tmp_path, scenario, rounds=2):
    """A server with a finished run of some rounds, and an enrolled client."""

    async def main():
        (tmp_path / "server").mkdir()
        federation = Federation(tmp_path / "server")
        await federation.start()
        agents = Agents(federation, tmp_path)
        try:
            async with asyncio.timeout(3 * PATIENCE_S):
                await agents.start("device", Adder())
                run = await submit(
                    federation, ZEROS, rounds=rounds, cohort={"goal": 1, "quorum": 1}
                )
                await federation.ended(run)
                await agents.stop()
                await scenario(federation, tmp_path / "device" / "client.toml", run)
        finally:
            await agents.stop()
            await federation.stop()

    asyncio.run(main())


async def latest(config, **settings):
    """Call like a program without an event loop."""
    return await asyncio.to_thread(lambda: Model.latest(config, **settings))


def digest_of(federation, run, number):
    (found,) = [m for m in federation.ledger.list_models(run) if m.round == number]
    return found.digest


@pytest.mark.long
def test_a_device_downloads_the_promoted_model_once(tmp_path, caplog):
    """It has the bytes of the promoted round; a newer promotion replaces it."""

    async def scenario(federation, config, run):
        with pytest.raises(UsageError, match="model promote"):
            await latest(config)
        federation.ledger.promote(digest_of(federation, run, 1))
        model = await latest(config)
        assert (model.run, model.round, model.fresh) == (run, 1, True)
        assert model.params()["w"] == pytest.approx(np.ones((40, 3)))
        assert abs(model.promoted_at.timestamp() - federation.ledger.promoted().at) < 1e-3

        # The server may delete its file: it is downloaded once.
        path = federation.contexts.models.path(model.digest)
        path.rename(path.with_suffix(".away"))
        assert (await latest(config)).digest == model.digest
        path.with_suffix(".away").rename(path)

        federation.ledger.promote(digest_of(federation, run, 2))
        assert (await latest(config)).round == 2
        assert (await latest(config, run=run)).round == 2
        assert (await latest(config, run="test")).round == 2
        with pytest.raises(UsageError, match="of 'other'"):
            await latest(config, run="other")

        await federation.stop()
        with caplog.at_level(logging.WARNING):
            offline = await latest(config)
        assert (offline.round, offline.fresh) == (2, False)
        assert "using the stored model" in caplog.text
        assert (await latest(config, offline=True)).round == 2
        await federation.start()

    play(tmp_path, scenario)


def test_without_a_stored_model_and_a_server_there_is_an_error(tmp_path):
    """Offline use needs an earlier download."""

    async def scenario(federation, config, run):
        with pytest.raises(UsageError, match="Run this once"):
            await latest(config, offline=True)

    play(tmp_path, scenario, rounds=1)


@pytest.mark.long
def test_a_statement_not_signed_for_this_request_is_refused(tmp_path, monkeypatch):
    """Another key, changed bytes, an answer to another request, or a path as a digest."""

    async def scenario(federation, config, run):
        federation.ledger.promote(digest_of(federation, run, 1))
        true = servers.promoted
        forged = {}

        async def answer(context, asked):
            reply = await true(context, asked)
            return forged["how"](context, reply)

        monkeypatch.setattr("fedloom.server.fleet.service.promoted", answer)

        def with_key(signer, statement):
            reply = fleet_pb2.PromotedReply(statement=statement)
            reply.signature.CopyFrom(signer.signature(PROMOTED, statement))
            return reply

        def changed(context, reply, **fields):
            statement = fleet_pb2.PromotedStatement.FromString(reply.statement)
            for name, value in fields.items():
                setattr(statement, name, value)
            return with_key(context.signing.signer, statement.SerializeToString())

        def path_like(context, reply):
            statement = fleet_pb2.PromotedStatement.FromString(reply.statement)
            statement.model.digest = "../../identity"
            return with_key(context.signing.signer, statement.SerializeToString())

        def purpose(context, reply):
            reply.signature.CopyFrom(context.signing.signer.signature("task", reply.statement))
            return reply

        cases = {
            Code.BAD_SIGNATURE: [
                lambda w, r: with_key(Signer.new(), r.statement),
                lambda w, r: fleet_pb2.PromotedReply(statement=r.statement),
                lambda w, r: fleet_pb2.PromotedReply(
                    statement=r.statement + b" ", signature=r.signature
                ),
                purpose,
            ],
            Code.WRONG_IDENTITY: [
                lambda w, r: changed(w, r, federation="another"),
                lambda w, r: changed(w, r, asked="another"),
            ],
            Code.MALFORMED: [path_like],
        }
        for code, hows in cases.items():
            for how in hows:
                forged["how"] = how
                with pytest.raises(Refusal) as refused:
                    await latest(config)
                assert refused.value.code is code
        assert not list(config.parent.rglob("promoted/*.safetensors"))
        forged["how"] = lambda w, r: r
        assert (await latest(config)).round == 1

    play(tmp_path, scenario)


@pytest.mark.long
def test_an_old_promotion_cannot_be_replayed(tmp_path, monkeypatch):
    """An earlier valid statement does not restore the old model."""

    async def scenario(federation, config, run):
        true, kept = servers.promoted, []

        async def recorded(context, asked):
            kept.append(await true(context, asked))
            return kept[-1]

        monkeypatch.setattr("fedloom.server.fleet.service.promoted", recorded)
        federation.ledger.promote(digest_of(federation, run, 1))
        await latest(config)
        federation.ledger.promote(digest_of(federation, run, 2))
        await latest(config)

        async def replayed(context, asked):
            return kept[0]

        monkeypatch.setattr("fedloom.server.fleet.service.promoted", replayed)
        with pytest.raises(IntegrityError, match="replayed"):
            await latest(config)
        assert (await latest(config, offline=True)).round == 2

    play(tmp_path, scenario)


@pytest.mark.long
def test_a_model_changed_on_the_device_is_downloaded_again(tmp_path):
    """The digest is checked at each use, also offline."""

    async def scenario(federation, config, run):
        federation.ledger.promote(digest_of(federation, run, 1))
        model = await latest(config)
        model.path.chmod(0o600)
        model.path.write_bytes(model.path.read_bytes()[:-1] + b"x")
        with pytest.raises(UsageError):
            await latest(config, offline=True)
        assert read_params((await latest(config)).path)["b"].shape == (5,)

    play(tmp_path, scenario)


@pytest.mark.long
def test_the_command_shows_and_exports_the_model(tmp_path):
    """`fedloom client model` with a real server, as text and JSON, then offline."""

    async def scenario(federation, config, run):
        federation.ledger.promote(digest_of(federation, run, 1))
        out = tmp_path / "model.safetensors"

        async def command(*arguments):
            made = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-m", "fedloom.cli.main", "client", "model", *map(str, arguments)],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            assert made.returncode == 0, made.stderr
            return made.stdout

        text = await command("--config", config, "--export", "safetensors", "--out", out)
        assert f"round 1 of {run}" in text
        assert read_params(out)["w"] == pytest.approx(np.ones((40, 3)))
        found = json.loads(await command("--config", config, "--offline", "--json"))
        assert (found["run"], found["round"], found["fresh"]) == (run, 1, False)

    play(tmp_path, scenario)


def test_promotions_are_older_only_by_both_clocks(tmp_path):
    """A ledger restored from a backup, or a clock set back, does not lock devices out."""

    def made(number, at):
        return Promotion(
            promotion=number, promoted_us=at, run="r", round=1, digest="0" * 64, size_bytes=1
        )

    now = made(5, 500)
    assert made(4, 400).is_before(now)
    assert made(5, 499).is_before(now)
    assert not made(5, 500).is_before(now)
    assert not made(3, 600).is_before(now)
    assert not made(6, 100).is_before(now)


def test_few_models_are_kept(tmp_path):
    """Only the newest models stay on the disk."""
    shelf = PromotedModels(tmp_path)
    for number in range(7):
        source = tmp_path / f"{number}.safetensors"
        write_file(source, {"w": np.full(3, number, np.float32)})
        data = source.read_bytes()
        part = shelf.receive_model(f"{number:064x}", len(data))
        part.append(data)
        part.close()
        shelf.adopt_model(f"{number:064x}")
        os.utime(shelf.path(f"{number:064x}"), ns=(number, number))
    left = sorted((tmp_path / FOLDER).iterdir())
    assert len(left) == 4
    assert left[-1] == shelf.path(f"{6:064x}")


def test_the_method_has_its_protocol_name():
    assert methods.PROMOTED == "/fedloom.v1.Fleet/Promoted"
