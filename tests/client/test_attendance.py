"""Devices that the server must reach at any time do not check in."""

import pytest

from fedloom.client.config import load
from fedloom.protocol.errors import UsageError
from fedloom.site import process

SETTINGS = 'server = "localhost:7443"\nstate_dir = "client-state"\nattendance = "check-in"\n'


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "client.toml"
    path.write_text(SETTINGS)
    return path


def test_the_file_or_the_environment_decides(settings):
    assert load(settings, {}).checks_in
    assert not load(settings, {"FEDLOOM_ATTENDANCE": "stream"}).checks_in
    with pytest.raises(UsageError, match='as "stream" or "check-in", got "poll"'):
        load(settings, {"FEDLOOM_ATTENDANCE": "poll"})


def test_a_site_does_not_start(settings, tmp_path):
    with pytest.raises(UsageError, match=r'attendance = "stream" for a site.*client\.toml'):
        process.run(tmp_path / "server", settings)
