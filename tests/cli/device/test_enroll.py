"""`fedloom client enroll` without a server."""

from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.protocol.trust.tokens import make_token


def test_missing_token_file_is_a_usage_error(tmp_path):
    """Exit 2, and nothing is written."""
    missing = tmp_path / "ward-3.token"
    words = ["client", "enroll", "--server", "localhost:7444", "--token", f"@{missing}"]
    result = CliRunner().invoke(main, [*words, "--dir", str(tmp_path)])
    assert result.exit_code == 2
    assert f"Cannot read the token in {missing}" in result.output
    assert not (tmp_path / "client.toml").exists()


def test_unwritable_folder_does_not_use_up_the_token(tmp_path):
    """The folder is checked before the server is contacted."""
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "client-state").mkdir()
    (tmp_path / "device" / "client-state" / "room").mkdir()
    token = make_token(bytes(32)).text()
    words = ["client", "enroll", "--server", "localhost:1", "--token", token]
    result = CliRunner().invoke(main, [*words, "--dir", str(tmp_path / "device")])
    assert result.exit_code == 5
    assert "the token is still valid" in result.output


def enrolled(tmp_path, *words, **variables):
    """The error output of an enrolment by a token that no server knows."""
    command = ["client", "enroll", "--server", "localhost:1", "--dir", str(tmp_path), *words]
    result = CliRunner(env=variables).invoke(main, command)
    assert result.exit_code == 5
    return result.stderr


def test_a_token_that_lists_of_processes_show_is_warned_of(tmp_path):
    """Not one from a file or from the environment."""
    token = make_token(bytes(32)).text()
    (tmp_path / "token").write_text(token)
    assert "can see the value of --token" in enrolled(tmp_path, "--token", token)
    assert "warning" not in enrolled(tmp_path, "--token", f"@{tmp_path / 'token'}")
    assert "warning" not in enrolled(tmp_path, FEDLOOM_TOKEN=token)
