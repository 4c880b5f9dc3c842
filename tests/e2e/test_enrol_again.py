"""An enrolment whose answer was lost: the same token gets the same device its certificate."""

import time

import pytest
import sqlalchemy as sa

from fedloom.client.config import load
from fedloom.client.identity import enrol as enrolment
from fedloom.client.identity.enrol import enrol
from fedloom.client.state.store import ClientStore
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.transport import methods
from fedloom.protocol.trust.identity import build_csr, key_from_pem
from fedloom.protocol.v1 import enrolment_pb2
from fedloom.server.ledger.audit_trail import Filter
from fedloom.server.ledger.tables import certificates, tokens
from support.federation import Identity, ask

pytestmark = pytest.mark.e2e


class LostError(Exception):
    """The device loses power when the answer comes."""


@pytest.fixture
def device(tmp_path, federation, monkeypatch):
    """Enrols once without storing the answer; returns how to do it again, by any token."""

    def lose(*_):
        raise LostError

    async def attempt(token):
        address = f"127.0.0.1:{federation.server.enrolment_port}"
        return await enrol(address, token.text(), tmp_path / "device" / "client.toml")

    async def lost(token):
        with monkeypatch.context() as patched:
            patched.setattr(enrolment, "_keep", lose)
            with pytest.raises(LostError):
                await attempt(token)
        return attempt

    return lost


def rows(federation, client):
    of_it = sa.select(certificates).where(certificates.c.client == client)
    with federation.ledger._engine.connect() as connection:
        return connection.execute(of_it).all()


def test_the_same_device_enrols_by_the_same_token(runner, federation, device, tmp_path):
    async def scene():
        token = federation.add_token("far")
        attempt = await device(token)
        (before,) = rows(federation, "far")
        assert await attempt(token) == "far"
        (after,) = rows(federation, "far")
        assert after.key == before.key
        assert after.serial != before.serial
        entries = federation.ledger.trail.page(Filter(who="far", action="client.enrol"), 10)
        assert len(entries) == 2
        state = load(tmp_path / "device" / "client.toml").state_dir
        assert not list(state.glob("enrolment*"))
        pem, _ = ClientStore(state).identity()
        channel = federation.channel(Identity("far", pem, pem))
        renewal = enrolment_pb2.RenewRequest(csr_pem=build_csr(key_from_pem(pem)))
        answer = await ask(channel, methods.RENEW, renewal.SerializeToString())
        assert answer.code is None  # the certificate is known

    runner.run(scene())


@pytest.mark.parametrize("why", ["another device", "revoked", "enrolled anew", "expired"])
def test_nobody_else_does(runner, federation, device, monkeypatch, why):
    name = why.replace(" ", "-")

    async def scene():
        token = federation.add_token(name)
        attempt = await device(token)
        if why == "another device":
            monkeypatch.setattr(
                ClientStore, "enrolment_key", lambda *_: ClientStore._key_until_stored(_[0], "new")
            )
        elif why in ("revoked", "enrolled anew"):
            federation.ledger.revoke(name)
        if why == "enrolled anew":  # another device has the name now
            federation.enrol(name)
        if why == "expired":
            past = tokens.update().where(tokens.c.id == token.id).values(expires_at=time.time())
            with federation.ledger._engine.begin() as connection:
                connection.execute(past)
        count = len(rows(federation, name))
        with pytest.raises(Refusal) as refused:
            await attempt(token)
        assert refused.value.code is Code.BAD_TOKEN
        assert ("expired" if why == "expired" else "used before") in str(refused.value)
        assert len(rows(federation, name)) == count

    runner.run(scene())


def test_another_token_has_another_key(tmp_path):
    """A disk may be copied between an enrolment that was not answered and the next."""
    store = ClientStore(tmp_path)
    first = store.enrolment_key("0123abcd")
    assert ClientStore(tmp_path).enrolment_key("0123abcd") == first
    assert store.enrolment_key("0123abce") != first
