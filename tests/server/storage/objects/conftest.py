"""A server that speaks S3, for the tests of a session."""

import pytest

from support.object_store import CREDENTIALS, S3Server


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    server = S3Server(tmp_path_factory.mktemp("s3") / "log")
    yield server
    server.close()


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
