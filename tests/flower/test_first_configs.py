"""The `run_config` of SuperNodes: what they cannot be told later is refused by name."""

import pytest

pytest.importorskip("flwr", reason="needs Flower: make flower")

from fedloom.client.supernodes import apps
from fedloom.client.supernodes.apps import KEEP_RUNS, FirstConfigs
from fedloom.protocol.errors import UsageError
from support.flower import APPS

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # of flwr's own code


def test_a_changed_value_is_refused_also_after_a_restart(tmp_path):
    """It names the value; other runs, and the first value, are accepted."""
    path = tmp_path / "first.json"
    FirstConfigs(path).check(1, {"lr": 0.5, "steps": 3})
    FirstConfigs(path).check(1, {"lr": 0.5, "steps": 3})
    FirstConfigs(path).check(2, {"lr": 0.25, "steps": 3})
    with pytest.raises(UsageError, match="The values of lr changed"):
        FirstConfigs(path).check(1, {"lr": 0.25, "steps": 3})
    FirstConfigs(path).check(1, {"lr": 0.5, "steps": 3})


def test_the_record_is_bounded(tmp_path):
    """The oldest runs are forgotten."""
    path = tmp_path / "first.json"
    configs = FirstConfigs(path)
    for run in range(KEEP_RUNS + 5):
        configs.check(run, {"lr": float(run)})
    size = path.stat().st_size
    configs.check(0, {"lr": 9.0})
    assert path.stat().st_size <= size + 20
    with pytest.raises(UsageError):
        configs.check(KEEP_RUNS + 4, {"lr": 0.0})


def test_a_supernode_gets_only_names_of_the_apps_config(tmp_path):
    """It refuses a run with others; another app makes another run."""
    bundle = apps.load(APPS / "plainmean")
    known = bundle.known({"slow": 2.0, "lr": 0.5, "other": "x"})
    assert known == {"slow": 2.0}
    run = bundle.run("mean-1", known)
    assert run.override_config["slow"].double == 2.0
    assert run.run_id == bundle.run_id("mean-1") != apps.load(APPS / "numpyquick").run_id("mean-1")


@pytest.mark.parametrize("content", [None, b"no zip", b""])
def test_what_is_no_app_is_refused(tmp_path, content):
    """A folder without a project, and files that are no FAB."""
    path = tmp_path / "app"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(UsageError, match="Expected"):
        apps.load(path)
    with pytest.raises(UsageError, match="Expected"):
        apps.load(tmp_path / "none")


def test_a_fab_file_is_the_app(tmp_path):
    """As built from the folder: the same digest."""
    built = apps.load(APPS / "plainmean")
    (tmp_path / "app.fab").write_bytes(built.content)
    assert apps.load(tmp_path / "app.fab") == built
