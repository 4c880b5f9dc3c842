"""The process of a site: a server for its devices, and an agent that connects to the parent."""

import asyncio
from functools import partial
from pathlib import Path

from fedloom.protocol.errors import UsageError
from fedloom.server import app  # first: it tunes the allocator before gRPC is imported
from fedloom.server import config as configuration
from fedloom.server.rounds.upstream.collector import Collector


def run(state_dir: Path, upstream: Path, *, ready: Path | None = None) -> None:
    """Serve the devices of a site, and its parent, until SIGTERM or SIGINT.

    Args:
        state_dir: of the server, made by `fedloom server init`.
        upstream: settings of the client that this server is to its parent, as
            `fedloom client enroll` writes them.
        ready: file to which the ports are written, atomically, once all listen.

    Raises:
        Refusal: the parent refuses this client for good.
        FedloomError: as `fedloom.server.app.run`, or the settings of the client are not valid.
    """
    from fedloom.client.config import load  # noqa: PLC0415 - the import above says why

    load(upstream).require_stream("a site")  # a mistake is reported before anything starts
    if configuration.load(state_dir).store:
        raise UsageError(
            "Expected --upstream or an object store, got both: a site keeps its sums for the "
            "parent on its own disk. Empty `store` in server.toml."
        )
    app.run(state_dir, ready=ready, beside=partial(_attend, upstream))


async def _attend(upstream: Path, server: app.Server) -> None:
    """Connect to the parent, and perform its tasks until cancelled."""
    from fedloom.client.agent.agent import Agent  # noqa: PLC0415 - the module says why
    from fedloom.client.api import Client  # noqa: PLC0415
    from fedloom.client.budgets import Budgets  # noqa: PLC0415
    from fedloom.client.config import load  # noqa: PLC0415
    from fedloom.client.state.store import ClientStore  # noqa: PLC0415
    from fedloom.site.runner import SiteGate, SumRunner  # noqa: PLC0415

    context, config = server.context.rounds, load(upstream)
    collector = Collector(server.runs, context)
    runners: list[SumRunner] = []
    gate = SiteGate()

    def runner(_: Client, store: ClientStore, __: Budgets) -> SumRunner:
        store.keeps_differences = True  # devices get them, too
        runners.append(SumRunner(collector, context.outbox, store, gate))
        return runners[0]

    agent = asyncio.ensure_future(Agent(Client(), config, [gate], runner).run())
    try:
        await asyncio.shield(agent)
    except asyncio.CancelledError:
        for each in runners:
            each.keeps = True
        agent.cancel()
        await asyncio.wait([agent])
        raise
