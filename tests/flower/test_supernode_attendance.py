"""A SuperNode is reached at any time: its client does not check in."""

import asyncio

import pytest

pytest.importorskip("flwr", reason="needs Flower: make flower")

from fedloom.client.supernodes.node import Node
from fedloom.protocol.errors import UsageError


def test_a_supernode_whose_client_checks_in_does_not_start(tmp_path):
    """The bridge says so before it listens."""
    (tmp_path / "client.toml").write_text(
        'server = "localhost:7443"\nstate_dir = "client-state"\nattendance = "check-in"\n'
    )

    async def begin():
        return Node(tmp_path, None, None, client_fn=False, evaluates=False)

    with pytest.raises(UsageError, match=r'attendance = "stream" for a SuperNode, got "check-in"'):
        asyncio.run(begin())
