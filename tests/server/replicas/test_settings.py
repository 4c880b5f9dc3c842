"""`replicated = true`: with which databases and stores it works."""

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.config import ServerConfig

DATABASE, STORE = "postgresql+psycopg://db/fedloom", "s3://bucket/prefix"


@pytest.mark.parametrize("database", [DATABASE, "postgresql://db/f", "postgresql+psycopg2://db/f"])
def test_a_shared_database_and_store_are_accepted(database):
    """Of the drivers that know the settings of its connections."""
    assert ServerConfig(replicated=True, database=database, store=STORE).replicated


@pytest.mark.parametrize(
    ("database", "store"),
    [
        ("", STORE), (DATABASE, ""), (DATABASE, "file:///shared"), ("sqlite:////shared/x", STORE),
        ("postgresql+pg8000://db/f", STORE),
    ],
)  # fmt: skip
def test_what_only_one_server_has_is_refused(database, store):
    """Before anything is opened, with what to set."""
    with pytest.raises(UsageError, match=r"docs/replicas\.md"):
        ServerConfig(replicated=True, database=database, store=store)


def test_gates_need_replicas_and_notifications():
    """Without them devices at a gate would wait a second for each message."""
    shared = {"replicated": True, "store": STORE, "gates": True}
    assert ServerConfig(database=DATABASE, **shared).gates
    with pytest.raises(UsageError, match=r"notifications"):
        ServerConfig(database="postgresql+psycopg2://db/f", **shared)
    with pytest.raises(UsageError, match="with replicated = true"):
        ServerConfig(database=DATABASE, store=STORE, gates=True)
