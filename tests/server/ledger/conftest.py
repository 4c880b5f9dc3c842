"""A PostgreSQL server, shared by a module's tests."""

import pytest


@pytest.fixture(scope="module")
def database():
    from support.postgresql import PostgreSQL

    server = PostgreSQL()
    yield server
    server.close()
