"""What several modules share: a federation with an arena; databases, object stores and servers."""

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


@pytest.fixture(scope="module")
def database():
    """A PostgreSQL server of the module's own."""
    from support.postgresql import PostgreSQL

    server = PostgreSQL()
    yield server
    server.close()


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """An S3 server of the module's own."""
    from support.object_store import S3Server

    server = S3Server(tmp_path_factory.mktemp("s3") / "log")
    yield server
    server.close()


@pytest.fixture
def credentials(monkeypatch):
    """Those of the S3 server, for this process and its children."""
    from support.object_store import CREDENTIALS

    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def cluster(tmp_path):
    """Servers and devices as processes."""
    from support.site_servers import Cluster

    made = Cluster(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def large_model(tmp_path_factory):
    """A file of an initial model, of two parts in an object store."""
    from fedloom.server.storage.objects.parts import PART_BYTES
    from support.site_servers import write_model

    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    write_model(path, 2_200_000)
    assert path.stat().st_size > PART_BYTES
    return path


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    """A file of an initial model."""
    from support.site_servers import write_model

    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    write_model(path, 50_000)
    return path


@pytest.fixture(scope="module")
def alone(small_model, tmp_path_factory):
    """Digest of the last model of the replicas' run on a server alone."""
    from support.replicas import alone, spec

    return alone(tmp_path_factory.mktemp("alone"), small_model, spec())
