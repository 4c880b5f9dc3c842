"""Three replicas are upgraded one after another, across a version of the ledger, within a run."""

import pytest

from fedloom.server.ledger.migrations import VERSION
from fedloom.server.ledger.tables import drivers, versions
from support.next_version import NEXT, next_version
from support.replicas import alone, rows, spec
from support.rolling_upgrade import RollingUpgrade

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.usefixtures("credentials")]


def test_replicas_are_upgraded_one_after_another(tmp_path, database, s3, small_model):
    """No round fails, each device counts once in each, and the bits are those of one server."""
    url, store = database.create(tmp_path.name), s3.url(tmp_path.name)
    rolling = RollingUpgrade(tmp_path, url, store)
    first = rolling.replicas.first

    def upgraded():
        [found] = rows(first, versions)
        assert found["version"] == VERSION + 1

    try:
        rolling.play(small_model, next_version(tmp_path), upgraded)
        [driver] = rows(first, drivers)
        assert (driver["version"], driver["ledger_version"]) == (NEXT, VERSION + 1)
    finally:
        rolling.close()
    print(rolling.told())
    apart, last = tmp_path / "apart", rolling.counted[-1]
    apart.mkdir()
    assert last.model_out == alone(apart, small_model, spec(rounds=last.number))
