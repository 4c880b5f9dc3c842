"""Devices of masked rounds before three replicas that serve them as gates, behind haproxy.

It has the parts of `support.federation.Federation` that `support.masked_devices.Device` uses.
"""

import asyncio
import time
from datetime import UTC, datetime

import grpc

from fedloom.protocol.tensors.container import read_params, write_file
from fedloom.protocol.trust import tokens
from fedloom.protocol.trust.identity import build_csr, generate_key, key_to_pem
from fedloom.server.pki.authority import Authority
from support import federation as wire
from support.federation import CHANNEL_OPTIONS, Identity
from support.masked_devices import Device
from support.masked_sums import MASKED, ZEROS, update
from support.patience import PATIENCE_S
from support.replicas import Replicas
from support.storage import storage_of

TRAIN = {"epochs": 1, "batch_size": 8, "learning_rate": 0.1}
PATIENT = MASKED | {
    "name": "masked", "rounds": 1, "evaluate": False, "train": TRAIN,
    "cohort": MASKED["cohort"] | {"deadline_s": 300.0, "patience_s": 60.0},
    "masking": MASKED["masking"] | {"phase_s": 60.0, "upload_s": 60.0, "session_s": 300.0},
}  # fmt: skip
"""A run that waits for devices while they, or the server that drives, move."""


class MaskedReplicas(Replicas):
    """Three replicas with gates."""

    def __init__(self, directory, database, store, **settings):
        super().__init__(directory, database, store, 3, gates=True, **settings)
        self.directory = directory
        self.authority = Authority.load(self.first.state / "pki")

    def enrol(self, client):
        key = generate_key()
        chain, peer = self.authority.issue_client(build_csr(key), client, 3600.0, datetime.now(UTC))
        token = tokens.make_token(self.authority.root_pin)

        def store(ledger):
            hashed = tokens.secret_hash(token.secret)
            ledger.add_token(token.id, hashed, client, time.time() + 600)
            ledger.enrol(token.id, peer.serial, peer.not_after.timestamp())

        self.first.ledger(store)
        return Identity(client, key_to_pem(key), chain)

    def channel(self, identity, to=None):
        """A connection through the proxy, or to a replica."""
        credentials = grpc.ssl_channel_credentials(
            self.authority.root_pem, identity.key_pem, identity.chain_pem
        )
        address = f"localhost:{self.port}" if to is None else to.settings.fleet
        return grpc.aio.secure_channel(address, credentials, CHANNEL_OPTIONS)

    def submitted(self, **changes):
        """Submit the run; its id."""
        path = self.directory / "initial.safetensors"
        write_file(path, ZEROS)
        return self.first.submit(PATIENT | changes, path)

    def result(self, run):
        """The row of a run, its sessions in the first round, and its model."""
        any_ = self.all[-1]
        row = any_.ledger(lambda ledger: ledger.run(run))
        sessions = any_.ledger(lambda ledger: ledger.sessions(run, 1))
        storage = storage_of(any_.state, any_.settings)
        try:
            return row, sessions, read_params(storage.models.local(row.model))
        finally:
            storage.close()


class PlacedDevice(Device):
    """A device that connects to one replica after another, whenever its stream has ended.

    Args:
        replicas: a `MaskedReplicas`.
        at: numbers of replicas, in turn; the last one again and again. None for the proxy.

    Attributes:
        cut_short: a replica to which it sends a part of its body first; None for none.
        partial: how that ended.
    """

    def __init__(self, replicas, name, update, at=None, **settings):
        super().__init__(replicas, name, update, **settings)
        self.replicas, self.at = replicas, list(at or ())
        self.cut_short = self.partial = None
        self.federation = self

    @property
    def authority(self):
        return self.replicas.authority

    def channel(self, identity):
        if not self.at:
            return self.replicas.channel(identity)
        number = self.at.pop(0) if len(self.at) > 1 else self.at[0]
        return self.replicas.channel(identity, self.replicas.all[number])

    async def upload(self):
        if self.cut_short is not None:
            raw, to = self.body.tobytes(), self.replicas.channel(self.identity, self.cut_short)
            self.cut_short = None
            self.partial = await wire.upload(to, self.described(raw), [raw[: len(raw) // 2]])
        return await super().upload()


def devices_of(replicas, places=None):
    """Devices of a masked run, perhaps with the replicas to which they connect."""
    count = PATIENT["cohort"]["goal"]
    places = places or [None] * count
    return [PlacedDevice(replicas, f"d{i}", update(i), places[i]) for i in range(count)]


def play(replicas, devices, during=None, **changes):
    """Play a run with these devices; its id. `during` is called with the run, beside it."""

    async def playing():
        run = await asyncio.to_thread(replicas.submitted, **changes)
        for device in devices:
            device.start()
        try:
            if during is not None:
                await during(run)
            until = time.monotonic() + 2 * PATIENCE_S
            while True:
                row = await asyncio.to_thread(
                    replicas.all[-1].ledger, lambda ledger: ledger.run(run)
                )
                if row.state != "running":
                    return run
                assert time.monotonic() < until, "".join(
                    each.log()[-3000:] for each in replicas.all
                )
                await asyncio.sleep(0.1)
        finally:
            for device in devices:
                await device.stop()

    return asyncio.run(playing())
