"""Tests of a client without a server: a conformance check, and rounds in this process.

    from fedloom.client.testing import check, rounds

    def test_my_client():
        assert check(client, "init.safetensors") == []
        assert rounds(client, "init.safetensors").rounds[-1].training["loss"] < 0.5

`fedloom client test my_client.py:client` does both. The base installation is enough.
"""

from fedloom.client.testing.asked import RunSettings as Run
from fedloom.client.testing.checks import check
from fedloom.client.testing.findings import CHECKS, Finding
from fedloom.client.testing.rounds import LocalRound as Round
from fedloom.client.testing.rounds import Played, rounds

__all__ = ["CHECKS", "Finding", "Played", "Round", "Run", "check", "rounds"]
