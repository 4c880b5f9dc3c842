"""`fedloom client config`: the settings in effect and their sources."""

import json

from click.testing import CliRunner

from fedloom.cli.main import main


def invoke(*words, **variables):
    return CliRunner(env=variables).invoke(main, ["client", "config", *words])


def test_settings_are_printed_with_their_sources(tmp_path):
    """The text has columns: name, value, source."""
    path = tmp_path / "client.toml"
    path.write_text('server = "localhost:7443"\nstate_dir = "state"\n')
    lines = invoke("--config", str(path), FEDLOOM_RECONNECT_S="5").stdout.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert rows["reconnect_s"] == ["5.0", "FEDLOOM_RECONNECT_S"]
    assert rows["server"] == ['"localhost:7443"', str(path)]
    assert rows["labels"] == ["{}", "default"]


def test_environment_variables_can_replace_the_file(tmp_path):
    """The JSON document has the same content."""
    words = ("--json", "--config", str(tmp_path / "none.toml"))
    result = invoke(*words, FEDLOOM_SERVER="fl:1", FEDLOOM_STATE_DIR="/state")
    found = json.loads(result.stdout)["settings"]
    assert found["server"] == {"value": "fl:1", "source": "FEDLOOM_SERVER"}
    assert found["state_dir"]["value"] == "/state"


def test_unknown_setting_is_refused(tmp_path):
    """Exit 2 with a suggestion, as for the agent."""
    path = tmp_path / "client.toml"
    path.write_text('sevrer = "localhost:7443"\n')
    result = invoke("--config", str(path))
    assert result.exit_code == 2
    assert "Did you mean 'server'?" in result.stderr
