"""Renewals are limited: one new certificate in a tenth of a life; repeats get the same one."""

import asyncio

import sqlalchemy as sa

from fedloom.client.state.store import ClientStore
from fedloom.protocol.errors import Code
from fedloom.protocol.transport import methods
from fedloom.protocol.trust.identity import build_csr, generate_key, key_from_pem
from fedloom.protocol.v1 import enrolment_pb2
from fedloom.server.ledger.audit_trail import Filter
from fedloom.server.ledger.tables import certificates
from support.federation import ask


def renewal(key):
    return enrolment_pb2.RenewRequest(csr_pem=build_csr(key)).SerializeToString()


def chain_of(answer):
    assert answer.code is None, answer
    return enrolment_pb2.IssuedCertificate.FromString(answer.replies[0]).chain_pem


def stored(federation, client):
    """Certificates of a client in the ledger, and entries of the trail about its renewals."""
    of_it = sa.select(certificates).where(certificates.c.client == client)
    entries = federation.ledger.trail.page(Filter(who=client, action="client.renew"), 1000)
    with federation.ledger._engine.connect() as connection:
        return len(connection.execute(of_it).all()), len(entries)


def test_repeats_get_the_same_certificate(runner, federation):
    """With the same key: nothing is issued.

    Each answer comes after a commit that writes: what is only read may be lost with a database.
    """
    written = []

    def note(_connection, _cursor, statement, *_):
        written.append(statement.startswith("UPDATE certificates"))

    async def scene():
        channel = federation.channel(federation.enrol("repeater"))
        key = generate_key()
        first = chain_of(await ask(channel, methods.RENEW, renewal(key)))
        sa.event.listen(federation.ledger._engine, "before_cursor_execute", note)
        try:
            chains = {chain_of(await ask(channel, methods.RENEW, renewal(key))) for _ in range(20)}
        finally:
            sa.event.remove(federation.ledger._engine, "before_cursor_execute", note)
        assert chains == {first}
        assert sum(written) == 20
        assert stored(federation, "repeater") == (2, 1)

    runner.run(scene())


def test_other_keys_wait_for_a_tenth_of_a_life(runner, federation, monkeypatch):
    """Refused with the time; after it, a new certificate is issued."""

    async def scene():
        channel = federation.channel(federation.enrol("changer"))
        chain_of(await ask(channel, methods.RENEW, renewal(generate_key())))
        answers = [await ask(channel, methods.RENEW, renewal(generate_key())) for _ in range(10)]
        assert {answer.code for answer in answers} == {Code.BUSY}
        assert "try again in 60480 s" in answers[0].message  # a tenth of a week
        assert stored(federation, "changer") == (2, 1)
        age_renewals(federation, "changer", 60_480.0)
        chain_of(await ask(channel, methods.RENEW, renewal(generate_key())))
        assert stored(federation, "changer") == (3, 2)

    runner.run(scene())


def age_renewals(federation, client, seconds):
    with federation.ledger._engine.begin() as connection:
        its = certificates.update().where(certificates.c.client == client)
        older = {"issued_at": certificates.c.issued_at - seconds}
        connection.execute(its.values(**older, not_after=certificates.c.not_after - seconds))


def test_renewals_at_once_give_one_certificate(runner, federation):
    """Whatever their keys."""

    async def scene():
        channel = federation.channel(federation.enrol("parallel"))
        calls = (ask(channel, methods.RENEW, renewal(generate_key())) for _ in range(20))
        codes = [answer.code for answer in await asyncio.gather(*calls)]
        assert (codes.count(None), codes.count(Code.BUSY)) == (1, 19)
        assert stored(federation, "parallel") == (2, 1)

    runner.run(scene())


def test_ended_certificates_are_forgotten(federation):
    """Once they cannot be renewed late any more; the latest one is kept."""
    federation.enrol("elder")
    ledger = federation.ledger
    for number in range(5):
        ledger.add_certificate(f"e{number}", "elder", 100.0 + number, key="k", ended_before=103.5)
    with ledger._engine.connect() as connection:
        query = sa.select(certificates.c.serial).where(certificates.c.client == "elder")
        assert (
            {"e4"}
            <= set(connection.execute(query).scalars())
            <= {"e3", "e4"}
            | set(connection.execute(query.where(certificates.c.not_after > 1000)).scalars())
        )


def test_device_keeps_the_key_of_a_renewal_until_it_has_the_certificate(tmp_path, federation):
    """So that a killed one repeats its request; then the next renewal has another key."""
    store = ClientStore(tmp_path / "state")
    first = store.renewal_key()
    assert store.renewal_key() == ClientStore(tmp_path / "state").renewal_key() == first
    (tmp_path / "state" / "renewal.key").write_bytes(b"torn")
    second = store.renewal_key()
    assert second != first
    assert key_from_pem(second)
    store.save_identity(second, b"chain", b"root")
    assert store.renewal_key() not in (first, second)
