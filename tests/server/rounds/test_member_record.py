"""Records of devices: their digest is that of the file, and stays the same after a crash."""

import json
from hashlib import sha256

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.protocol.updates.site_members import member
from fedloom.server.config import ServerConfig
from fedloom.server.rounds.upstream.member_record import recorded

MEMBERS = [member("lab", 2, [member("six"), member("seven")]), member("one")]


def test_the_name_is_the_digest_of_the_file(tmp_path):
    """Which has the members; the same again after a crash."""
    path = tmp_path / "members" / "run.1.json"
    name = recorded(path, MEMBERS)
    assert name == f"sha256:{sha256(path.read_bytes()).hexdigest()}"
    assert json.loads(path.read_bytes())["members"] == MEMBERS
    assert recorded(path, MEMBERS) == name
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_digest_does_not_tell_names_that_one_can_try(tmp_path):
    """Equal members have another digest in each round."""
    names = {recorded(tmp_path / f"run.{number}.json", MEMBERS) for number in range(3)}
    assert len(names) == 3


def test_a_server_sends_names_or_their_digest():
    """Not both: the digest would be of no use."""
    with pytest.raises(UsageError, match="got both"):
        ServerConfig(name_devices=True, digest_devices=True)
