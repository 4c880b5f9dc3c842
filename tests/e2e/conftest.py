"""A federation with an arena, shared by a module's tests."""

import pytest


@pytest.fixture(scope="module")
def arena(runner, federation, tmp_path_factory):
    """Alice, bob and mallory, enrolled and connected."""
    from fedloom.server.access.token_buckets import Buckets
    from support.arena import Arena
    from support.forgery import write_model

    pace = federation.contexts.pace  # these clients are refused more often than in a real fleet
    pace.refusals = pace.lines = pace.all_lines = Buckets(burst=10_000, per_s=1000.0)
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    write_model(path)
    model = federation.contexts.models.add(path)
    identities = {name: federation.enrol(name) for name in ("alice", "bob", "mallory")}

    async def attend():
        return {name: await federation.attend(i) for name, i in identities.items()}

    streams = runner.run(attend())
    channels = {name: federation.channel(i) for name, i in identities.items()}
    return Arena(federation, model, identities, streams, channels)
