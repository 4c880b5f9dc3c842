"""Floods of refused calls: counted exactly, stored in batches, answered late."""

import asyncio
import time

import pytest
import sqlalchemy as sa

from fedloom.protocol.errors import Code
from fedloom.protocol.transport import methods
from fedloom.protocol.trust import tokens
from fedloom.protocol.trust.identity import build_csr, generate_key
from fedloom.protocol.v1 import enrolment_pb2, fleet_pb2
from fedloom.protocol.version import PROTOCOL_VERSIONS
from fedloom.server.access.token_buckets import Buckets
from fedloom.server.fleet.pacing import MAX_STREAMS, STRANGER_STREAMS
from fedloom.server.ledger import Ledger
from fedloom.server.ledger.audit_trail import Filter
from support.federation import Federation, ask, converse
from support.patience import PATIENCE_S

NUM_CALLS = 400


@pytest.fixture
def commits(federation):
    """Counts the ledger's transactions that write."""
    found = []
    engine = federation.ledger._engine

    def count(connection):
        found.append(1)

    sa.event.listen(engine, "commit", count)
    yield found
    sa.event.remove(engine, "commit", count)


@pytest.fixture(autouse=True)
def pace(federation):
    """Full buckets for each test, smaller than in operation."""
    pace = federation.contexts.pace
    pace.refusals = Buckets(burst=32, per_s=8.0)
    return pace


def outsider(name):
    header = fleet_pb2.UpdateHeader(client=name, weight=1.0, size_bytes=100)
    header.task.run, header.task.round = "digits", 1
    return header.SerializeToString()


def guess(token):
    request = enrolment_pb2.EnrolRequest(
        protocol_versions=PROTOCOL_VERSIONS, token=token, csr_pem=build_csr(generate_key())
    )
    return request.SerializeToString()


def counted(ledger, code):
    return sum(row.times for row in ledger.list_refusals() if row.code == code)


@pytest.mark.long
def test_uploads_outside_the_cohort_cost_no_transactions(runner, federation, commits):
    """400 at once: a transaction a second, and a row for each code with the number."""

    async def scene():
        channel = federation.channel(federation.enrol("outsider"))
        await ask(
            channel, methods.MEASURE, methods.MEASURE_HEAD.pack(0)
        )  # learn the limit of streams
        began, before = time.monotonic(), len(commits)
        calls = [
            asyncio.ensure_future(converse(channel, methods.UPLOAD, [outsider("outsider")]))
            for _ in range(NUM_CALLS)
        ]
        done, lost = await asyncio.wait(calls, timeout=20.0)  # gRPC may lose some that it resets
        for call in lost:
            call.cancel()
        await asyncio.gather(*lost, return_exceptions=True)
        answers = [call.result() for call in done]
        codes = [answer.code for answer in answers if answer.code]  # the others gRPC itself refuses
        assert Code.UNKNOWN_RUN in codes
        assert set(codes) <= {Code.UNKNOWN_RUN, Code.BUSY}
        assert len(commits) - before <= 4 + 2 * (time.monotonic() - began)
        rows = [row for row in federation.refusals() if row.client == "outsider"]
        times = {row.code: row.times for row in rows}  # also of answers that were lost
        assert all(times[code] >= codes.count(code) for code in set(codes))
        assert sum(times.values()) <= NUM_CALLS
        assert len(rows) == len(times)

    runner.run(scene())


@pytest.mark.long
def test_guessed_tokens_cost_no_transactions(runner, federation, commits):
    """One a second; the first guesses are looked up, by threads that delay no round."""

    async def scene():
        door = federation.door()
        token = tokens.make_token(federation.authority.root_pin).text()
        await ask(door, methods.ENROL, guess(token))
        began, before = time.monotonic(), len(commits)
        codes = [Code.BAD_TOKEN]
        for _ in range(25):  # as many at once as a connection may have
            calls = (ask(door, methods.ENROL, guess(token)) for _ in range(STRANGER_STREAMS))
            codes += [answer.code for answer in await asyncio.gather(*calls)]
        codes = [code for code in codes if code is not None]  # beyond it, gRPC itself refuses
        assert set(codes) == {Code.BAD_TOKEN, Code.BUSY}
        assert len(commits) - before <= 4 + 2 * (time.monotonic() - began)
        rows = {row.code: row.times for row in federation.refusals() if not row.client}
        assert rows.keys() == {str(code) for code in set(codes)}
        assert all(rows[str(code)] >= codes.count(code) for code in set(codes))
        assert sum(rows.values()) <= 1 + 25 * STRANGER_STREAMS  # some answers were not waited for

    runner.run(scene())


@pytest.mark.long
def test_device_enrols_beside_an_attacker_at_its_address(runner, federation):
    """As thousands of devices behind one address do: its token is one of those given out."""

    async def scene():
        door = federation.door()
        wrong = tokens.make_token(federation.authority.root_pin).text()
        codes = []

        async def attack():
            while True:
                codes.append((await ask(door, methods.ENROL, guess(wrong))).code)

        attackers = [asyncio.ensure_future(attack()) for _ in range(STRANGER_STREAMS - 1)]
        async with asyncio.timeout(PATIENCE_S):
            while Code.BUSY not in codes:
                await asyncio.sleep(0.05)
            token = federation.add_token("honest").text()
            while not (answer := await federation.ask_enrolment(token=token)).replies:
                assert answer.code in {Code.BUSY, None}, answer
                await asyncio.sleep(0.2)  # the list of unused tokens is two seconds old at most
        codes = [code for code in codes if code is not None]  # gRPC itself may refuse a stream
        assert set(codes) == {Code.BAD_TOKEN, Code.BUSY}
        assert not any(task.done() for task in attackers)
        for task in attackers:
            task.cancel()
        await asyncio.gather(*attackers, return_exceptions=True)

    runner.run(scene())


@pytest.mark.long
def test_calls_of_another_client_pass_a_flood(runner, federation):
    """While one client's calls wait, another's are answered at once."""

    async def scene():
        noisy = federation.channel(federation.enrol("noisy"))
        calm = federation.channel(federation.enrol("calm"))
        await ask(calm, methods.MEASURE, methods.MEASURE_HEAD.pack(0))

        async def call():
            while True:
                await converse(noisy, methods.UPLOAD, [outsider("noisy")])

        flood = [asyncio.ensure_future(call()) for _ in range(2 * MAX_STREAMS)]
        await asyncio.sleep(1.0)
        took = []
        for _ in range(20):
            began = time.monotonic()
            assert (await ask(calm, methods.MEASURE, methods.MEASURE_HEAD.pack(0))).code is None
            took.append(time.monotonic() - began)
        assert not any(task.done() for task in flood)
        assert sorted(took)[10] < 0.25
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)

    runner.run(scene())


@pytest.mark.long
def test_refusals_are_stored_when_the_server_stops(tmp_path):
    """All of them, and the failed enrolments in the audit trail."""

    async def scene():
        federation = await Federation(tmp_path).start()
        channel = federation.channel(federation.enrol("outsider"))
        calls = (converse(channel, methods.UPLOAD, [outsider("outsider")]) for _ in range(20))
        await asyncio.gather(*calls)
        for number in range(15):
            await federation.ask_enrolment(token=f"guess {number}")
        await federation.stop()

    asyncio.run(scene())
    ledger = Ledger.in_directory(tmp_path)
    assert counted(ledger, Code.UNKNOWN_RUN) == 20
    assert counted(ledger, Code.BAD_TOKEN) == 15
    assert ledger.trail.page(Filter(action="client.enrol.refused"), 100)
    ledger.close()
