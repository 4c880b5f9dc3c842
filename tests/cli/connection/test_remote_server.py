"""Operator commands on a remote server, over TLS with an API token."""

import json

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from support.door import Door, write_model

RUN_TOML = 'name = "digits"\n[cohort]\ngoal = 2\n[train]\nepochs = 1\nlearning_rate = 0.1\n'


def _run(*args, code=0):
    result = CliRunner().invoke(main, args)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    """A server with TLS on every interface and its own certificate authority."""
    with Door(tmp_path_factory.mktemp("door") / "state", console="0.0.0.0:0") as door:
        yield door


@pytest.fixture
def url(door, tmp_path, monkeypatch):
    """The server's URL; the token and the authority are in the environment."""
    monkeypatch.chdir(tmp_path)
    port = door.site.url.rpartition(":")[2]
    _, made = door.ask("POST", "/api-tokens", {"name": "ci", "scope": "operator"})
    (tmp_path / "ci.token").touch(mode=0o600)
    (tmp_path / "ci.token").write_text(f"{made['token']}\n")
    monkeypatch.setenv("FEDLOOM_URL", f"https://localhost:{port}")
    monkeypatch.setenv("FEDLOOM_API_TOKEN", f"@{tmp_path / 'ci.token'}")
    monkeypatch.setenv("FEDLOOM_CA", str(door.directory / "pki" / "root.pem"))
    return f"https://localhost:{port}"


@pytest.mark.long
def test_commands_work_remotely(url, tmp_path):
    """Upload, submit, list, pause, export and stop."""
    (tmp_path / "run.toml").write_text(RUN_TOML)
    path = write_model(tmp_path / "init.safetensors", size=1 << 20)
    args = ("run", "submit", "run.toml", "--model", "init.safetensors", "--json")
    run = json.loads(_run(*args).stdout)["id"]
    assert run in _run("run", "list").stdout
    _run("run", "pause", run, "--yes")
    _run("model", "export", run, "--out", "out.safetensors")
    assert (tmp_path / "out.safetensors").read_bytes() == path.read_bytes()
    assert "ci (token)" in _run("audit", "list", "--subject", run).stdout
    _run("run", "stop", run, "--yes")


def test_scope_limits_commands(url):
    """The server refuses actions outside the token's scope: exit 3."""
    said = _run("user", "list", code=3).stderr
    assert "needs the scope admin" in said
    error = json.loads(_run("user", "list", "--json", code=3).stdout)["error"]
    assert (error["kind"], error["exit_code"]) == ("denied", 3)


def test_bad_token_is_refused_and_not_repeated(url, monkeypatch):
    """Exit 3 for an unknown token, exit 2 for an invalid one; its text is not printed."""
    monkeypatch.setenv("FEDLOOM_API_TOKEN", "fla1.00000000." + "A" * 43)
    assert "unknown, revoked or expired" in _run("run", "list", code=3).stderr
    monkeypatch.setenv("FEDLOOM_API_TOKEN", "sécret\n")
    assert "cret" not in _run("run", "list", code=2).stderr
    monkeypatch.delenv("FEDLOOM_API_TOKEN")
    assert "--api-token" in _run("run", "list", code=2).stderr
    monkeypatch.setenv("FEDLOOM_API_TOKEN", "@missing.token")
    assert "missing.token" in _run("run", "list", code=2).stderr


def test_server_certificate_is_verified(url, monkeypatch):
    """An unknown authority is exit 5 with a remedy; a missing CA file is exit 2."""
    monkeypatch.delenv("FEDLOOM_CA")
    assert "root.pem" in _run("run", "list", code=5).stderr
    monkeypatch.setenv("FEDLOOM_CA", "missing.pem")
    assert "missing.pem" in _run("run", "list", code=2).stderr


@pytest.mark.parametrize(
    "wrong", ["http://fl.example.org:7445", "ftp://x", "localhost:1", "https://x/v1", "https://x:y"]
)
def test_invalid_urls_are_refused(url, wrong):
    """Also http to another machine, which would expose the token."""
    _run("run", "list", "--url", wrong, code=2)


def test_unreachable_server_is_exit_5(url):
    """The error names the URL."""
    from support.ports import steady_port

    gone = f"https://localhost:{steady_port()}"
    assert gone in _run("run", "list", "--url", gone, code=5).stderr


def test_url_overrides_the_directory(url, tmp_path):
    """Without a URL the directory is used."""
    _run("run", "list", "--dir", str(tmp_path / "nowhere"))
    _run("run", "list", "--url", "", "--dir", str(tmp_path / "nowhere"), code=2)


def test_tls_responses_require_tls(door):
    """Responses set HSTS, and the cookie is bound to this host."""
    from support.visitor import Visitor

    site = door.site
    assert site.url.startswith("https://localhost:")
    ca = door.directory / "pki" / "root.pem"
    answer = Visitor(site, ca=ca).ask("GET", "/login")
    assert answer.headers["strict-transport-security"].startswith("max-age=")
    assert site.cookie == "__Host-fedloom"
    _, made = door.ask("POST", "/login-links", {})
    visitor = Visitor(site, ca=ca)
    answer = visitor.ask("GET", "/login/link?" + made["url"].partition("?")[2])
    assert "; secure" in answer.headers["set-cookie"].lower()
    assert visitor.ask("GET", "/v1/me").status == 200
