"""Sites whose devices mask their updates: servers and sites as processes of their own.

Devices are agents in processes, or `support.masked_devices.Device` in the process of the test.
"""

import asyncio
import os
from pathlib import Path

import grpc

from fedloom.client.config import load
from fedloom.client.state.store import ClientStore
from fedloom.client.update.clip_and_noise import Guard
from fedloom.protocol.masking import BodyLayout, write_body
from fedloom.protocol.task_message import from_message
from fedloom.protocol.trust.identity import chain_pem
from fedloom.server.pki.authority import Authority
from support.federation import CHANNEL_OPTIONS, Identity
from support.masked_devices import Device, integers
from support.patience import PATIENCE_S
from support.site_servers import RUN_SEED, Cluster

FLOOR = "[masking]\nmin_group = 3\n"
"""Policy of the devices: their usual floor is 16 members."""

MASKING = {
    "group": 4, "min_group": 3, "sum_bits": 32, "precision": 1e-3, "phase_s": 20.0,
    "session_s": 120.0, "metrics": {"loss": 200.0},
}  # fmt: skip


class MaskedCluster(Cluster):
    """As `Cluster`, of devices whose owners accept small sessions."""

    def enrol(self, server, names):
        """The settings of new devices."""
        configs = super().enrol(server, names)
        for config in configs:
            Path(config).with_name("policy.toml").write_text(FLOOR)
        return configs


class DeviceFleet:
    """What a `Device` uses of a site that is a process."""

    def __init__(self, server):
        self._server = server
        self.authority = Authority.load(server.state / "pki")

    def enrol(self, name):
        config = load(self._server.enrol(name))
        pem, _ = ClientStore(config.state_dir).identity()
        return Identity(name, pem, chain_pem(pem))

    def channel(self, identity):
        credentials = grpc.ssl_channel_credentials(
            self.authority.root_pem, identity.key_pem, identity.chain_pem
        )
        fleet = self._server.settings.fleet
        return grpc.aio.secure_channel(fleet, credentials, CHANNEL_OPTIONS)


class NoisyDevice(Device):
    """Adds the share of the run's noise that is its own, from the roster that it checked.

    Attributes:
        sent: tensor → the integers in its body.
    """

    def plain_body(self):
        task = from_message(self.task)
        size = sum(each.size for each in self.update.values())
        noise = Guard.of(task.privacy).share(
            members=self.member.roster.size, exponent=task.masking.exponent, size=size,
            round=task.round, key=os.urandom(32),
        )  # fmt: skip
        self.sent = {
            name: integers(each, task.masking.exponent, 1)
            + noise.block(("delta", name), 0, each.size)
            for name, each in sorted(self.update.items())
        }
        layout = BodyLayout(sum_bits=task.masking.sum_bits, num_values=size, num_words=0)
        return write_body(layout, self.sent.values(), []), layout


def played(devices, holds, what):
    """Let devices take part until a condition holds; its last value."""

    async def play():
        for device in devices:
            device.start()
        try:
            async with asyncio.timeout(5 * PATIENCE_S):
                while not (found := await asyncio.to_thread(holds)):
                    await asyncio.sleep(0.1)
                return found
        except TimeoutError:
            raise AssertionError(f"waited in vain: {what}") from None
        finally:
            for device in devices:
                await device.stop()

    return asyncio.run(play())


def spec(goal, **changes):
    """A masked run through sites."""
    return {
        "name": "masked",
        "rounds": 2,
        "seed": RUN_SEED,
        "sites": True,
        "max_abs": 0.0625,
        "max_weight": 1024.0,
        "strategy": {"name": "fedadam"},
        "cohort": {"goal": goal, "quorum": goal, "deadline_s": 300.0},
        "train": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1},
        "masking": MASKING,
        **changes,
    }
