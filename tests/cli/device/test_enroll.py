"""`fedloom client enroll`, as far as it goes without a server."""

from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.protocol.trust.tokens import make_token


def test_a_token_file_that_is_missing_is_the_users_to_mend(tmp_path):
    """It is an argument that is wrong, not a server that is away."""
    missing = tmp_path / "ward-3.token"
    words = ["client", "enroll", "--server", "localhost:7444", "--token", f"@{missing}"]
    result = CliRunner().invoke(main, [*words, "--dir", str(tmp_path)])
    assert result.exit_code == 2
    assert f"Cannot read the token in {missing}" in result.output
    assert not (tmp_path / "client.toml").exists()


def test_a_token_is_not_spent_where_nothing_can_be_written(tmp_path):
    """A full disk or a wrong folder is told before the server is asked."""
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "client-state").mkdir()
    (tmp_path / "device" / "client-state" / "room").mkdir()
    token = make_token(bytes(32)).text()
    words = ["client", "enroll", "--server", "localhost:1", "--token", token]
    result = CliRunner().invoke(main, [*words, "--dir", str(tmp_path / "device")])
    assert result.exit_code == 5
    assert "the token is still good" in result.output
