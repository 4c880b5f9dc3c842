"""Masked rounds over real gRPC, with devices that a test controls message by message."""

import asyncio

import numpy as np
import pytest
from click.testing import CliRunner
from crc32c import crc32c

from fedloom.cli.main import main
from fedloom.protocol.errors import Code, UsageError
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import SessionState
from fedloom.server.fleet.upload_body import IncomingBody
from fedloom.server.ledger.masking.bodies import MaskedUpload
from fedloom.server.rounds.masking.driver import MaskedRoundDriver
from fedloom.server.rounds.masking.exchange import Exchange
from fedloom.server.storage.spool import write_footer
from support import federation as wire
from support.agents import result, submit, until
from support.door import _Connection
from support.federation import Federation
from support.masked_devices import AGREEMENT, BODY, REVEAL, SHARES, Device
from support.masked_sums import MASKED, OVER_SESSIONS, ZEROS, mean_of, median_of, update

pytestmark = pytest.mark.e2e


def played(tmp_path, scenario, count=5, **weights):
    """Run a scenario with a server and devices d0, d1 and so on."""

    async def play():
        federation = await Federation(tmp_path).start()
        devices = [
            Device(federation, f"d{i}", update(i), weight=weights.get(f"d{i}", 1))
            for i in range(count)
        ]
        try:
            return await scenario(federation, devices)
        finally:
            for device in devices:
                await device.stop()
            await federation.stop()

    return asyncio.run(play())


def started(devices):
    for device in devices:
        device.start()


def sessions_of(federation, run, number=1):
    return federation.ledger.sessions(run, number)


async def finished(federation, run):
    await federation.ended(run)
    return federation.ledger.run(run)


def check_model(federation, run, devices):
    """The model is the exact mean of these devices' integers."""
    exponent = devices[0].task.masking.exponent
    got, wanted = result(federation, run), mean_of(devices, exponent)
    for name in ZEROS:
        assert got[name].tobytes() == wanted[name].tobytes(), name


def test_a_masked_round_gives_the_exact_sum_and_nothing_else(tmp_path):
    """Bits of the mean, the metrics of the words, and no file or message of a member is left."""

    async def scenario(federation, devices):
        run = await submit(federation, ZEROS, **MASKED)
        started(devices)
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        check_model(federation, run, devices)
        [found] = federation.ledger.list_rounds(run)
        assert found.accepted == 5
        assert found.training == {"num_examples": 5, "values": {"loss": 0.25}}
        [session] = sessions_of(federation, run)
        assert session.state is SessionState.DONE
        for phase in ("ready", "shares", "body", "agreement", "reveal"):
            assert federation.ledger.session_messages((run, 1, 0), phase) == {}
        spool = {p.name for p in (tmp_path / "spool").iterdir()}
        assert not any(name.startswith(run) for name in spool), spool
        for device in devices:
            assert device.told[-1] == "done", device.told
            assert not device.refusals
            assert not device.withdrawn

    played(tmp_path, scenario)


def test_sums_of_words_of_many_sessions_may_have_more_than_64_bits(tmp_path):
    """Each session's fit 64 bits, as is checked at submit: the mean of all is right, too."""
    most = 2.0**62 / 4 / 2**20 / 262_144 * 0.9

    async def scenario(federation, devices):
        for device in devices:
            device.loss, device.weight = most, 262_144
        bounds = {"group": 4, "phase_s": 30.0, "metrics": {"loss": most * 1.01}}
        masking = MASKED["masking"] | bounds
        cohort = MASKED["cohort"] | {"goal": 12, "quorum": 12, "patience_s": 30.0}
        run = await submit(federation, ZEROS, **MASKED | {"masking": masking, "cohort": cohort})
        started(devices)
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        [found] = federation.ledger.list_rounds(run)
        assert found.training["num_examples"] == 12 * 262_144
        assert found.training["values"]["loss"] == pytest.approx(most, rel=1e-12)

    played(tmp_path, scenario, count=12)


def phases_of(federation, run, number=1):
    return {m.client: m.phase for m in federation.ledger.cohort(run, number)}


def reason_of(federation, run, client, number=1):
    return {m.client: m.reason for m in federation.ledger.cohort(run, number)}[client]


def late(*values):
    """Cases of `make long` alone: one case of the test is in every run."""
    return [pytest.param(each, marks=pytest.mark.long) for each in values]


PHASES = [BODY, *late(SHARES, AGREEMENT, REVEAL)]


def short(**masking):
    """Settings whose phases end soon."""
    return MASKED | {"masking": MASKED["masking"] | {"phase_s": 3.0, "upload_s": 3.0} | masking}


@pytest.mark.parametrize("phase", PHASES)
def test_a_member_may_drop_out_in_each_phase(tmp_path, phase):
    """The sum is that of the members whose bodies came; the other one learns that it is over."""

    async def scenario(federation, devices):
        devices[2].stops = phase
        run = await submit(federation, ZEROS, **short())
        started(devices)
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        gone = phase in (SHARES, BODY)
        counted = [d for d in devices if d is not devices[2] or not gone]
        check_model(federation, run, counted)
        reported = {client for client, p in phases_of(federation, run).items() if p == "reported"}
        assert reported == {d.name for d in counted}
        assert all(d.told[-1] == "done" for d in counted)
        assert bool(devices[2].withdrawn) == gone

    played(tmp_path, scenario)


@pytest.mark.long
def test_a_body_whose_session_ends_while_it_is_synced_is_refused(tmp_path, monkeypatch):
    """The member learns that it is too late; the server keeps no byte of the body."""
    finish = IncomingBody.finish

    async def scenario(federation, devices):
        run = await submit(federation, ZEROS, **short())

        async def slowly(body):
            stats = await finish(body)
            if body._file.name.endswith(".d2"):
                await until(lambda: sessions_of(federation, run)[0].state.is_over)
            return stats

        monkeypatch.setattr(IncomingBody, "finish", slowly)
        started(devices)
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        check_model(federation, run, [d for d in devices if d is not devices[2]])
        await until(lambda: devices[2].answers)
        assert devices[2].answers[0].code is Code.ROUND_CLOSED
        assert not [p for p in (tmp_path / "spool").iterdir() if p.name.startswith(run)]

    played(tmp_path, scenario)


def test_a_body_that_is_not_the_accepted_one_is_not_added(tmp_path, monkeypatch):
    """As if another upload of the member had replaced it: the round ends without a sum."""
    fetch = MaskedRoundDriver._fetch_bodies

    async def swapped(driver, of, members):
        path = driver._context.spool.path(driver._body("d1"))
        header = driver._context.spool.header(path.name)
        header.crc32c ^= 1
        with path.open("r+b") as file:
            raw = header.SerializeToString(deterministic=True)
            write_footer(file.fileno(), raw, header.size_bytes, header.size_bytes)
        await fetch(driver, of, members)

    monkeypatch.setattr(MaskedRoundDriver, "_fetch_bodies", swapped)

    async def scenario(federation, devices):
        run = await submit(federation, ZEROS, **MASKED)
        started(devices)
        ledger = federation.ledger
        await until(lambda: [r.state for r in ledger.list_rounds(run)][:1] == ["abandoned"])
        assert "Expected the body of d1 that was accepted" in ledger.list_rounds(run)[0].reason
        assert {s.state for s in sessions_of(federation, run)} == {SessionState.ABANDONED}

    played(tmp_path, scenario)


@pytest.mark.long
def test_a_body_that_a_gate_tells_of_late_counts_for_the_threshold(tmp_path, monkeypatch):
    """The row was there before the deadline of its session; its message waits in the queue."""
    accept = MaskedRoundDriver.accept

    async def accepted(driver, update):
        if update.client != "d3":
            return await accept(driver, update)
        context, at = driver._context, driver._open_sessions[0].at
        header = context.spool.header(update.file).SerializeToString(deterministic=True)
        upload = MaskedUpload(at=at, client="d3", file=update.file, header=header)
        return await context.in_ledger(context.ledger.accept_body, upload)

    monkeypatch.setattr(MaskedRoundDriver, "accept", accepted)

    async def scenario(federation, devices):
        async def sealed(key):
            return federation.ledger.accepted(*key)

        federation.contexts.rounds.sealed = sealed
        devices[4].stops = BODY
        run = await submit(federation, ZEROS, **short(phase_s=20.0, upload_s=3.0))
        started(devices)
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        [only] = federation.ledger.list_rounds(run)
        assert only.accepted == 4
        check_model(federation, run, devices[:4])

    played(tmp_path, scenario)


def test_a_reveal_whose_session_ends_while_it_is_checked_is_too_late(tmp_path, monkeypatch, caplog):
    """The shares that it is compared with are deleted by then; the server does not fail."""
    read, calls, ended = Exchange._read_shares, 0, asyncio.Event()
    caplog.set_level("INFO")

    async def scenario(federation, devices):
        async def slowly(exchange, of, session):
            nonlocal calls
            calls += 1
            if calls == len(devices):  # the last reveal
                await until(lambda: session.state.is_over)
                of.dealt.clear()  # as after a restart, when they are read again
                await read(exchange, of, session)
                ended.set()
            else:
                await read(exchange, of, session)

        monkeypatch.setattr(Exchange, "_read_shares", slowly)
        run = await submit(federation, ZEROS, **short())
        started(devices)
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        check_model(federation, run, devices)
        await ended.wait()
        await until(lambda: all(d.told[-1] == "done" for d in devices))

    played(tmp_path, scenario)
    assert "reveal come too late" in caplog.text


def test_a_member_that_leaves_before_it_is_ready_is_in_no_session(tmp_path):
    """Drop-outs in training cost nothing: the roster has the others."""

    async def scenario(federation, devices):
        devices[0].stops = "ready"
        run = await submit(federation, ZEROS, **short())
        started(devices)
        await until(lambda: all(d.task is not None for d in devices))
        await devices[0].stop()
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        check_model(federation, run, devices[1:])
        [session] = sessions_of(federation, run)
        assert set(session.members) == {d.name for d in devices[1:]}

    played(tmp_path, scenario)


@pytest.mark.long
def test_a_session_below_its_threshold_is_closed_by_proof_and_tried_again(tmp_path):
    """Bodies that left count as not sent, the next round has all, and no body stays."""

    async def scenario(federation, devices):
        for device in devices[:2]:
            device.stops = BODY
        run = await submit(federation, ZEROS, **short())
        started(devices)
        await until(lambda: all(device.proof is not None for device in devices))
        for device in devices:
            device.stops = None
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        first, second = federation.ledger.list_rounds(run)
        assert (first.state, second.state) == ("abandoned", "committed")
        assert "threshold not reached" in first.reason
        check_model(federation, run, devices)
        assert "reported" not in phases_of(federation, run).values()
        for device in devices:
            assert device.told.count("closed") == 1
            assert not device.refusals

    played(tmp_path, scenario)


def test_a_false_share_is_refused_and_its_revealer_dropped(tmp_path):
    """The others suffice, and the ledger says what it did."""

    async def scenario(federation, devices):
        devices[1].twists[REVEAL] = lambda raw: raw[:40] + bytes([raw[40] ^ 1]) + raw[41:]
        run = await submit(federation, ZEROS, **short())
        started(devices)
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        check_model(federation, run, devices)
        [session] = sessions_of(federation, run)
        assert devices[1].name not in session.revealed
        assert "Expected shares as they were dealt" in reason_of(federation, run, "d1")
        assert federation.ledger.failures()["d1"].count == 1

    played(tmp_path, scenario)


def test_a_dealer_of_another_secret_is_named(tmp_path):
    """Its shares fit each other and not its advert: no sum, and it alone is at fault."""

    async def scenario(federation, devices):
        liar, make = devices[3], devices[3].new_member

        def lying():
            member = make()
            member._secrets.self_seed[-1] ^= 1
            return member

        liar.new_member = lying
        run = await submit(federation, ZEROS, **short())
        started(devices)
        await until(lambda: any(r.state == "abandoned" for r in federation.ledger.list_rounds(run)))
        reason = federation.ledger.list_rounds(run)[0].reason
        assert f"false shares: {liar.name} dealt shares of another secret" in reason
        phases = phases_of(federation, run)
        assert [client for client, p in phases.items() if p == "refused"] == [liar.name]
        assert "another secret" in reason_of(federation, run, liar.name)

    played(tmp_path, scenario)


def test_shares_that_cannot_be_read_are_complained_about_and_cost_nothing(tmp_path):
    """A dealer breaks one ciphertext; its holder reveals the others' shares."""

    async def scenario(federation, devices):
        def broken(raw):
            at = 2 * 32 + 5  # in the ciphertext for the second member
            return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]

        devices[0].twists[SHARES] = broken
        run = await submit(federation, ZEROS, **short())
        started(devices)
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        check_model(federation, run, devices)
        assert devices[1].said.count("complaint") == 1

    played(tmp_path, scenario)


def test_a_mask_that_does_not_cancel_makes_no_model_and_convicts_nobody(tmp_path):
    """A body of noise: the sum is implausible, and the model stays."""

    async def scenario(federation, devices):
        def noise(body):
            body[:] = np.random.default_rng(1).integers(0, 256, len(body), np.uint8)

        devices[4].twists["masked"] = noise
        run = await submit(federation, ZEROS, **short())
        started(devices)
        await until(lambda: any(r.state == "abandoned" for r in federation.ledger.list_rounds(run)))
        assert "implausible sum" in federation.ledger.list_rounds(run)[0].reason
        assert set(phases_of(federation, run).values()) == {"lost"}
        assert federation.ledger.run(run).model == federation.ledger.list_rounds(run)[0].model_in

    played(tmp_path, scenario)


def test_an_advert_of_another_client_or_round_ends_its_senders_part(tmp_path):
    """Both are refused in words; the session has the others."""

    async def scenario(federation, devices):
        settings = short(phase_s=20.0, upload_s=20.0)  # nobody drops out
        thief, old = devices[0], devices[1]
        run = await submit(federation, ZEROS, **settings)
        old.twists["ready"] = lambda raw: raw[:36].replace(raw[4:8], b"else") + raw[36:]
        thief.stops = "ready"
        started(devices)
        await until(lambda: devices[2].member is not None and thief.member is not None)
        thief.stops = None
        await thief.say("ready", devices[2].member.advert.to_bytes())
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        check_model(federation, run, devices[2:])
        assert "Expected the advert of d0, got one of 'd2'" in thief.withdrawn[0]
        assert "for this task and this try" in old.withdrawn[0]
        assert phases_of(federation, run)["d0"] == "failed"

    played(tmp_path, scenario)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        pytest.param(
            lambda header: header.ClearField("masking_session"),
            Code.MALFORMED,
            marks=pytest.mark.long,
        ),
        (lambda header: setattr(header, "masking_session", b"x" * 32), Code.MASKING_REFUSED),
        (lambda header: setattr(header, "weight", 1.0), Code.MALFORMED),
        pytest.param(
            lambda header: header.training.SetInParent(), Code.MALFORMED, marks=pytest.mark.long
        ),
        pytest.param(
            lambda header: setattr(header, "size_bytes", header.size_bytes + 8),
            Code.MALFORMED,
            marks=pytest.mark.long,
        ),
        pytest.param(
            lambda header: setattr(header, "size_bytes", 0), Code.MALFORMED, marks=pytest.mark.long
        ),
        pytest.param(
            lambda header: setattr(header, "model_digest", "0" * 64),
            Code.WRONG_MODEL,
            marks=pytest.mark.long,
        ),
    ],
)
def test_an_upload_that_is_not_the_masked_body_is_refused(tmp_path, change, code):
    """In clear, of another session, with a weight, metrics, another size or model; none is read."""

    async def scenario(federation, devices):
        def changed(header):
            other = fleet_pb2.UpdateHeader()
            other.CopyFrom(header)
            change(other)
            return other

        devices[0].twists["header"] = changed
        run = await submit(federation, ZEROS, **short())
        started(devices)
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        check_model(federation, run, devices[1:])
        assert devices[0].answers[0].code is code, devices[0].answers[0]
        assert devices[0].answers[0].replies == []

    played(tmp_path, scenario)


@pytest.mark.long
def test_a_body_that_comes_late_is_deleted_unread(tmp_path):
    """After U3 its pair secret will be rebuilt: nothing would protect it."""

    async def scenario(federation, devices):
        late, slow = devices[0], devices[1]
        late.stops, slow.stops = BODY, AGREEMENT
        settings = short(phase_s=30.0)
        run = await submit(federation, ZEROS, **settings)
        started(devices)
        await until(lambda: "survivors" in slow.told)
        late.stops = slow.stops = None
        answer = await late.upload()
        assert answer.code is Code.ROUND_CLOSED
        assert answer.replies == []
        assert not (tmp_path / "spool" / f"{run}.1.{late.name}").exists()
        await slow._survivors(slow.steps[-1])
        slow.stops = None
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        check_model(federation, run, devices[1:])

    played(tmp_path, scenario)


@pytest.mark.long
def test_an_upload_that_is_cut_by_the_freeze_leaves_no_bytes(tmp_path):
    """Half of a body is in the spool when the survivors are fixed."""

    async def scenario(federation, devices):
        late, slow = devices[0], devices[1]
        late.stops, slow.stops = BODY, AGREEMENT
        run = await submit(federation, ZEROS, **short(phase_s=30.0))
        started(devices)
        await until(lambda: late.body is not None)
        raw = late.body.tobytes()
        header = fleet_pb2.UpdateHeader(
            task=late.task.key, client=late.name, model_digest=late.task.model.digest,
            size_bytes=len(raw), crc32c=crc32c(raw), masking_session=late.member.roster.sid,
        )  # fmt: skip
        call = wire.Upload(late._channel)
        await call.write(header.SerializeToString())
        assert (await call.reply()).WhichOneof("kind") == "proceed"
        await call.write(raw[:64])
        file = tmp_path / "spool" / f"{run}.1.{late.name}"
        await until(file.exists)
        await until(lambda: "survivors" in slow.told)
        assert not file.exists()
        await call.write(raw[64:])
        await call.half_close()
        assert (await call.ending()).code is Code.ROUND_CLOSED
        assert not file.exists()
        slow.stops = None
        await slow._survivors(slow.steps[-1])
        assert (await finished(federation, run)).state == "finished"
        check_model(federation, run, devices[1:])

    played(tmp_path, scenario)


def test_another_content_for_a_filled_slot_is_refused(tmp_path):
    """The first shares count; the member that sends others is not waited for."""

    async def scenario(federation, devices):
        twice = devices[0]
        devices[1].stops = SHARES
        await submit(federation, ZEROS, **short(phase_s=60.0))
        started(devices)
        await until(lambda: SHARES in twice.said)
        first = twice.member._dealt.message.to_bytes()
        await twice.say(SHARES, first)
        await twice.say(SHARES, first[:-1] + bytes([first[-1] ^ 1]))
        await until(lambda: twice.withdrawn)
        assert "Expected a repeat of the shares that were stored" in twice.withdrawn[0]

    played(tmp_path, scenario)


@pytest.mark.parametrize("step", ["shares", *late("ready_list", "survivors", "signatures")])
def test_members_that_reconnect_get_the_last_step_again(tmp_path, step):
    """Every one loses its stream as the step comes, before it answers."""

    async def scenario(federation, devices):
        for device in devices:
            device.cuts = {step}
        run = await submit(federation, ZEROS, **MASKED)
        started(devices)
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        check_model(federation, run, devices)
        assert all(device.told.count(step) >= 2 for device in devices)

    played(tmp_path, scenario)


def test_ready_members_in_several_sessions_with_weights(tmp_path):
    """Three sessions of weighted updates with 64 bits: the exact weighted mean."""

    async def scenario(federation, devices):
        settings = MASKED | {
            "weighting": "examples",
            "max_weight": 64.0,
            "cohort": MASKED["cohort"] | {"goal": 9, "quorum": 9},
            "masking": MASKED["masking"] | {"group": 3, "sum_bits": 64},
        }
        run = await submit(federation, ZEROS, **settings)
        started(devices)
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        assert len(sessions_of(federation, run)) == 3
        check_model(federation, run, devices)
        [found] = federation.ledger.list_rounds(run)
        assert found.training == {"num_examples": 45, "values": {"loss": 0.25}}

    played(tmp_path, scenario, 9, **{f"d{i}": i + 1 for i in range(9)})


@pytest.mark.parametrize("phase", PHASES)
def test_a_restarted_server_continues_the_session(tmp_path, phase):
    """It stops while one member is silent, and starts again over the same folder: the same bits."""

    async def scenario(federation, devices):
        kind = {SHARES: "ready_list", BODY: "shares", AGREEMENT: "survivors", REVEAL: "signatures"}
        for device in devices[:2]:
            device.stops = phase
        cohort = MASKED["cohort"] | {"patience_s": 20.0}
        settings = MASKED | {
            "masking": MASKED["masking"] | {"phase_s": 20.0}, "cohort": cohort,
        }  # fmt: skip
        run = await submit(federation, ZEROS, **settings)
        started(devices)
        await until(lambda: all(kind[phase] in device.told for device in devices[:2]))
        await asyncio.sleep(0.1)
        await federation.restart()
        for device in devices:
            device.stops = None
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        check_model(federation, run, devices)

    played(tmp_path, scenario)


def test_the_list_of_ready_members_is_for_its_sessions_alone(tmp_path):
    """Another enrolled client may not download it."""

    async def scenario(federation, devices):
        devices[0].stops = SHARES
        run = await submit(federation, ZEROS, **short(phase_s=20.0))
        stranger = Device(federation, "stranger", update(9))
        started(devices)
        await until(lambda: "ready_list" in devices[0].told)
        digest = next(s.ready_list.digest for s in devices[0].steps if s.HasField("ready_list"))
        request = fleet_pb2.DownloadRequest(digest=digest).SerializeToString()
        answer = await wire.download(federation.channel(stranger.identity), request)
        assert answer.code is Code.UNKNOWN_MODEL
        await federation.server.runs.command(run, "stop")

    played(tmp_path, scenario)


def test_a_masked_update_in_a_run_in_clear_is_refused(tmp_path):
    """Nothing would take its mask off."""

    async def scenario(federation, devices):
        run = await submit(federation, ZEROS, cohort={"goal": 1}, weighting="uniform")
        attendance = await federation.attend(devices[0].identity)
        task = await attendance.offer_of(run)
        header = fleet_pb2.UpdateHeader(
            task=task.key, client="d0", model_digest=task.model.digest, size_bytes=8,
            masking_session=b"x" * 32,
        )  # fmt: skip
        answer = await wire.upload(attendance.channel, header, [b"x" * 8])
        assert answer.code is Code.MALFORMED
        assert "in clear in this run, got a masked one" in answer.message

    played(tmp_path, scenario)


def test_a_rule_compares_the_means_of_sessions(tmp_path):
    """The bits of numpy's median, with a member that drops out; two sessions are too few."""

    async def scenario(federation, devices):
        devices[4].stops = REVEAL
        run = await submit(federation, ZEROS, **OVER_SESSIONS)
        started(devices)
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        sessions = sessions_of(federation, run)
        assert [s.state for s in sessions] == [SessionState.DONE] * 3
        got, wanted = result(federation, run), median_of(devices, sessions)
        means = mean_of(devices, devices[0].task.masking.exponent)
        for name in ZEROS:
            assert got[name].tobytes() == wanted[name].tobytes(), name
            assert got[name].tobytes() != means[name].tobytes(), name
        assert not list((tmp_path / "spool").glob(f"{run}.*"))

    played(tmp_path, scenario, 12)


@pytest.mark.long
def test_a_round_with_too_few_sessions_is_abandoned_before_a_reveal(tmp_path):
    """Two means have no median: the quorum is above what two sessions hold."""

    async def scenario(federation, devices):
        devices[0].stops = BODY
        settings = OVER_SESSIONS | {
            "masking": short(group=4)["masking"],
            "cohort": MASKED["cohort"] | {"goal": 9, "quorum": 8},
        }  # fmt: skip
        with pytest.raises(UsageError, match=r"Raise cohort\.quorum to 9"):
            await submit(federation, ZEROS, **settings)
        settings["cohort"] |= {"quorum": 9}
        run = await submit(federation, ZEROS, **settings)
        driver = federation.server.runs.get(run)
        with pytest.raises(UsageError, match="at least 3 sessions of up to 4 clients"):
            driver.change_goals(9, 8)
        started(devices)
        rounds = federation.ledger.list_rounds
        await until(lambda: [row.state for row in rounds(run)][:1] == ["abandoned"])
        reason = rounds(run)[0].reason
        assert reason.endswith("expected at least 9 masked updates in all sessions, got 6")
        assert not any(AGREEMENT in device.said for device in devices)
        await federation.server.runs.command(run, "stop")

    played(tmp_path, scenario, 9)


def test_evaluation_is_masked_too(tmp_path):
    """A round without tensors: its body has words alone, and its metrics are theirs."""

    async def scenario(federation, devices):
        run = await submit(federation, ZEROS, **MASKED | {"evaluate": True})
        started(devices)
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        train, evaluate = federation.ledger.list_rounds(run)
        assert (train.kind, evaluate.kind) == ("train", "evaluate")
        assert evaluate.evaluation == {"num_examples": 5, "values": {"loss": 0.5}}
        assert train.training == {"num_examples": 5, "values": {"loss": 0.25}}
        check_model(federation, run, devices)

    played(tmp_path, scenario)


def test_a_goal_that_does_not_split_into_sessions_is_refused(tmp_path):
    """While the run goes on: the next round could not open."""

    async def scenario(federation, _):
        settings = short(group=4) | {"cohort": MASKED["cohort"] | {"goal": 4}}
        run = await submit(federation, ZEROS, **settings)
        driver = federation.server.runs.get(run)
        with pytest.raises(UsageError, match=r"masking\.min_group <= 2"):
            driver.change_goals(5, 3)
        with pytest.raises(UsageError, match="quorum=2 >= min_group=3"):
            driver.change_goals(4, 2)
        driver.change_goals(4, 4)
        assert (driver.round.engine.config.goal, driver.round.engine.config.quorum) == (4, 4)

    played(tmp_path, scenario, 0)


def test_pages_and_answers_show_a_round_that_masks(tmp_path):
    """The API, the CLI and the console's page of the run, while a member is silent."""

    async def scenario(federation, devices):
        devices[0].stops = BODY
        run = await submit(federation, ZEROS, **short(phase_s=20.0, upload_s=20.0))
        started(devices)
        await until(lambda: "shares" in devices[0].told)
        for path in (f"/runs/{run}", f"/runs/{run}/rounds/1", f"/v1/runs/{run}"):
            status, body = await asyncio.to_thread(read_page, federation, path)
            assert status == 200, (path, body[-500:])
        shown = await asyncio.to_thread(shows, federation, "run", "status", run)
        assert shown.exit_code == 0, shown.output
        await federation.server.runs.command(run, "stop")
        assert await finished(federation, run)

    played(tmp_path, scenario)


async def in_sessions(federation, devices, **settings):
    """Start a run whose members know their sessions, and say nothing yet; its id."""
    for device in devices:
        device.stops = SHARES
    run = await submit(federation, ZEROS, **settings)
    started(devices)
    await until(lambda: all(d.member and d.member.roster for d in devices))
    return run


async def go_on(device, stops=None):
    """Let a member send its shares, and go on to where it stops."""
    device.stops = stops
    await device.say(SHARES, device.member._answers["roster"].value.to_bytes())


@pytest.mark.long
def test_a_session_that_is_abandoned_costs_its_members_alone(tmp_path):
    """Two of one session stop at their bodies; the round commits the sum of the other one."""

    async def scenario(federation, devices):
        settings = short(group=5) | {"cohort": MASKED["cohort"] | {"goal": 8}}
        run = await in_sessions(federation, devices, **settings)
        first, _ = sessions_of(federation, run)
        lost = [d for d in devices if d.name in first.members]
        for device in devices:
            await go_on(device, BODY if device in lost[:2] else None)
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        check_model(federation, run, [d for d in devices if d not in lost])
        states = [s.state for s in sessions_of(federation, run)]
        assert states == [SessionState.ABANDONED, SessionState.DONE]
        [found] = federation.ledger.list_rounds(run)
        assert found.training["num_examples"] == 4
        assert all("abandoned" in device.told for device in lost)
        assert not list((tmp_path / "spool").glob(f"{run}.*"))

    played(tmp_path, scenario, 8)


def test_an_operator_ends_a_round_that_masks(tmp_path):
    """It cannot be cut short; aborted, its sessions are closed, and the next round has all."""

    async def scenario(federation, devices):
        run = await in_sessions(federation, devices, **short(phase_s=20.0, upload_s=20.0))
        for device in devices:
            await go_on(device, BODY if device is devices[0] else None)
        await until(lambda: "shares" in devices[0].told)
        runs = federation.server.runs
        with pytest.raises(UsageError, match="a session cannot be cut"):
            await runs.command(run, "close")
        await runs.command(run, "pause")
        await runs.command(run, "resume")
        devices[0].stops = None
        await runs.command(run, "abort", "enough")
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        first, second = federation.ledger.list_rounds(run)
        assert (first.state, first.reason, second.state) == ("abandoned", "enough", "committed")
        assert all(device.proof is not None for device in devices)
        check_model(federation, run, devices)

    played(tmp_path, scenario)


def test_a_restarted_process_has_dropped_out_of_its_session(tmp_path):
    """It comes with fresh secrets: it is refused in words, and the others finish without it."""

    async def scenario(federation, devices):
        run = await in_sessions(federation, devices, **short())
        fresh = devices[4].new_member()
        await devices[4].say("ready", fresh.advert.to_bytes())
        for device in devices[:4]:
            await go_on(device)
        row = await finished(federation, run)
        assert row.state == "finished", row.reason
        check_model(federation, run, devices[:4])
        assert "a process that restarts has dropped out" in devices[4].withdrawn[0]

    played(tmp_path, scenario)


def read_page(federation, path):
    connection = _Connection(federation.directory / "control.sock")
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def shows(federation, *words):
    return CliRunner().invoke(main, [*words, "--dir", str(federation.directory)])
