"""`fedloom client enroll`, as far as it goes without a server."""

from click.testing import CliRunner

from fedloom.cli.main import main


def test_a_token_file_that_is_missing_is_the_users_to_mend(tmp_path):
    """It is an argument that is wrong, not a server that is away."""
    missing = tmp_path / "ward-3.token"
    words = ["client", "enroll", "--server", "localhost:7444", "--token", f"@{missing}"]
    result = CliRunner().invoke(main, [*words, "--dir", str(tmp_path)])
    assert result.exit_code == 2
    assert f"Expected a token in {missing}" in result.output
    assert not (tmp_path / "client.toml").exists()
