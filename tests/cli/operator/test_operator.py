"""Output and exit codes of the operator's commands, against a real API."""

import hashlib
import json
import stat
import threading

import numpy as np
import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.protocol.tensors.container import write_file
from fedloom.protocol.trust.tokens import parse_token
from fedloom.server import config
from fedloom.server.pki.authority import Authority
from support.door import PATIENCE_S, Door, write_model

RUN_TOML = """
name = "digits"
[cohort]
goal = 2
[train]
epochs = 1
learning_rate = 0.1
"""


@pytest.fixture
def door(tmp_path, monkeypatch):
    """A running server that FEDLOOM_DIR names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLOOM_DIR", str(tmp_path / "state"))
    (tmp_path / "run.toml").write_text(RUN_TOML)
    write_model(tmp_path / "init.safetensors")
    with Door(tmp_path / "state") as door:
        yield door


def _run(*args, code=0):
    result = CliRunner().invoke(main, args)
    assert result.exit_code == code, result.output
    return result


def _json(*args, code=0):
    return json.loads(_run(*args, "--json", code=code).stdout)


def _submit(*options):
    return _json("run", "submit", "run.toml", "--model", "init.safetensors", *options)["id"]


# ---- init ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fleet", "names"),
    [("[::1]:7443", ["::1"]), ("0.0.0.0:7443", []), ("[::]:7443", []), ("localhost:7443", [])],
)
def test_certificate_has_the_listening_address(tmp_path, fleet, names):
    """Devices connect to it; wildcard addresses are left out."""
    made = _json("server", "init", "--dir", str(tmp_path / "new"), "--fleet", fleet)
    assert made["names"] == ["localhost", "127.0.0.1", *names]


def test_init_makes_a_private_server_once(tmp_path):
    """It writes settings and a certificate authority; a second init is refused."""
    state = tmp_path / "new"
    args = ("server", "init", "--dir", str(state), "--federation", "ward", "--name", "fl.example")
    made = _json(*args)
    assert made["names"] == ["localhost", "127.0.0.1", "fl.example"]
    assert config.load(state).federation == "ward"
    assert made["root_sha256"] == Authority.load(state / "pki").root_pin.hex()
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert "There is a server in" in _run(*args, code=2).stderr


@pytest.mark.parametrize(
    ("more", "host", "proxies"),
    [((), "127.0.0.1", ("127.0.0.1",)), (("--proxy", "192.0.2.10"), "0.0.0.0", ("192.0.2.10",))],
)
def test_init_behind_a_proxy(tmp_path, more, host, proxies):
    """The server listens where the proxy is: one on this machine needs no other port open."""
    state = tmp_path / "new"
    made = _json("server", "init", "--dir", str(state), "--public-name", "fl.example", *more)
    public = ["fl.example", "enroll.fl.example", "console.fl.example"]
    assert made["names"] == ["localhost", "127.0.0.1", *public]
    settings = config.load(state)
    found = settings.fleet, settings.enrolment, settings.console, settings.health
    assert found == tuple(f"{host}:{port}" for port in (7443, 7444, 7445, 7446))
    assert settings.proxies == proxies
    own = _json("server", "init", "--dir", str(tmp_path / "own"), "--public-name", "fl.example",
                "--fleet", "192.0.2.1:7000")  # fmt: skip
    assert (own["fleet"], own["enrolment"]) == ("192.0.2.1:7000", "127.0.0.1:7444")


def test_init_prints_the_next_command(tmp_path):
    """The command has the given directory."""
    output = _run("server", "init", "--dir", str(tmp_path / "new")).stdout
    assert f"fedloom server run --dir {tmp_path / 'new'}" in output


@pytest.mark.parametrize(
    "wrong",
    [
        ("--federation", "A B"), ("--fleet", "nowhere"), ("--name", "no host"), ("--name", ""),
        ("--public-name", "https://fl.example"), ("--public-name", "192.0.2.7"),
        ("--proxy", "192.0.2.10"), ("--public-name", "fl.example", "--proxy", "a.example"),
    ],
)  # fmt: skip
def test_init_with_wrong_settings_makes_no_server(tmp_path, wrong):
    """It can be repeated with correct settings."""
    state = str(tmp_path / "new")
    _run("server", "init", "--dir", state, *wrong, code=2)
    _run("server", "init", "--dir", state)


def test_interrupted_init_can_be_repeated(tmp_path):
    """An authority without settings is kept, because devices may already trust it."""
    state = tmp_path / "new"
    made = _json("server", "init", "--dir", str(state))
    (state / "server.toml").unlink()
    assert _json("server", "init", "--dir", str(state))["root_sha256"] == made["root_sha256"]
    (state / "server.toml").unlink()
    _run("server", "init", "--dir", str(state), "--federation", "other", code=2)


# ---- tokens and clients --------------------------------------------------------------------------


def test_tokens_are_printed_with_the_command_that_uses_them(door):
    """The command can be copied to the device."""
    output = _run("token", "create", "--client", "ward-3", "--ttl", "7d").stdout
    name, text = output.splitlines()[0].split(": ")
    assert (name, parse_token(text).pin) == ("ward-3", door.authority.root_pin)
    assert "fedloom client enroll --server 127.0.0.1:1 --token TOKEN" in output
    [row] = _json("token", "list")["tokens"]
    assert row["expires_at"] - row["created_at"] == pytest.approx(7 * 86400, abs=1)
    assert "ward-3" in _run("token", "list").stdout


def test_tokens_go_to_private_files(door, tmp_path):
    """Their text is not printed."""
    made = _json("token", "create", "--count", "3", "--out", "tokens")["tokens"]
    assert len({issued["client"] for issued in made}) == 3
    for issued in made:
        path = tmp_path / issued["file"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        parse_token(path.read_text())
        assert "token" not in issued


def test_names_and_a_count_exclude_each_other(door):
    """Both together are refused."""
    _run("token", "create", "--client", "a", "--count", "2", code=2)


def test_wildcard_address_is_replaced_by_a_name():
    """Devices cannot connect to 0.0.0.0, so the name is taken from the certificate."""
    from fedloom.cli.operator.tokens import _reachable

    names = ["localhost", "127.0.0.1", "fl.example"]
    assert _reachable({"enrolment": "0.0.0.0:7444", "names": names}) == "fl.example:7444"
    assert _reachable({"enrolment": "[::]:7444", "names": names[:2]}) == "localhost:7444"
    assert _reachable({"enrolment": "10.1.2.3:7444", "names": names}) == "10.1.2.3:7444"


def test_clients_are_listed_and_revoked(door):
    """Revoking an unknown client is exit 2."""
    assert "fedloom token create" in _run("client", "list").stdout
    door.contexts.ledger.add_token("01", "hash", "ward-3", 4e9)
    door.contexts.ledger.enrol("01", "01", 4e9)
    assert "offline" in _run("client", "list").stdout
    assert _run("client", "revoke", "ward-3", "--yes").stdout.endswith("ward-3 is revoked.\n")
    assert _json("client", "list")["clients"][0]["status"] == "revoked"
    _run("client", "revoke", "ward-9", "--yes", code=2)


def test_several_clients_are_acted_on_at_once(door):
    """One that cannot be is named, does not keep the others, and ends with exit code 1."""
    for name in ("ward-1", "ward-2"):
        door.contexts.ledger.add_token(name, b"hash", name, 4e9)
        door.contexts.ledger.enrol(name, name, 4e9)
    both = ("ward-1", "ward-2")
    assert "2 clients" in _run("client", "drain", *both, "--preview").stdout
    assert [c["hold"] for c in _json("client", "list")["clients"]] == [None, None]
    assert _run("client", "drain", *both, "--yes").stdout == "2 drained.\n"
    assert [c["hold"] for c in _json("client", "list")["clients"]] == ["drain", "drain"]
    partly = _run("client", "release", "ward-1", "ward-9", "--yes", code=1).stdout
    assert partly.startswith("1 released, 1 failed: ward-9: ")
    assert [c["hold"] for c in _json("client", "list")["clients"]] == [None, "drain"]


# ---- runs and models -----------------------------------------------------------------------------


def test_run_is_submitted_and_shown(door):
    """By file or by digest; `status` shows the newest run."""
    first = _submit()
    digest = _json("run", "status")["model"]
    second = _json("run", "submit", "run.toml", "--model", digest[:8])["id"]
    output = _run("run", "status").stdout
    assert second in output
    assert "waits for 2 clients (0 available)" in output
    listed = _run("run", "list").stdout
    assert listed.index(first) < listed.index(second)


@pytest.mark.long
@pytest.mark.parametrize(
    "args",
    [
        ("gone.toml", "--model", "init.safetensors"),
        ("init.safetensors", "--model", "init.safetensors"),
        ("run.toml", "--model", "gone.safetensors"),
        ("run.toml", "--model", "0123456789abcdef"),
    ],
)
def test_invalid_submission_is_refused(door, args):
    """Exit 2, and no run is created."""
    _run("run", "submit", *args, code=2)
    assert _json("run", "list")["runs"] == []


def test_settings_that_json_cannot_hold_are_refused(door, tmp_path):
    """TOML has dates and infinity, JSON does not."""
    for line in ("max_abs = inf\n", "name = 2026-01-01\n"):
        (tmp_path / "run.toml").write_text(line)
        _run("run", "submit", "run.toml", "--model", "init.safetensors", code=2)


@pytest.mark.long
def test_invalid_model_is_refused(door, tmp_path):
    """Exit 4 with the name of the file."""
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 64)
    result = _run("run", "submit", "run.toml", "--model", "bad.safetensors", code=4)
    assert "bad.safetensors" in result.output


def test_actions_apply_to_the_only_active_run(door):
    """With several active runs the run must be named."""
    run = _submit()
    said = _run("run", "pause", "--yes").stdout
    assert said.endswith(f"Run {run} is paused (paused by the operator).\n")
    assert "paused by the operator" in _run("run", "status").stdout
    assert _json("run", "pause")["changed"] is False
    assert _json("run", "resume", run, "--yes")["state"] == "running"
    _run("run", "abort", "--reason", "mislabelled", "--yes")
    _run("run", "close", "--yes", code=2)
    _run("run", "extend", "--by", "10m", "--yes", code=2)
    other = _submit()
    assert other in _run("run", "stop", code=2).stderr
    _run("run", "stop", run, "--yes")
    _run("run", "stop", other, "--yes")
    _run("run", "stop", code=2)


@pytest.mark.long
def test_watch_ends_with_the_run(door):
    """A stopped run is exit 0; with --json each change is a line."""
    run = _submit()
    stopping = threading.Timer(0.3, door.ask, ("POST", f"/runs/{run}/stop"))
    stopping.start()
    lines = _run("run", "status", run, "--watch", "--json").stdout.splitlines()
    stopping.join(PATIENCE_S)
    first, found = json.loads(lines[0]), json.loads(lines[-1])
    assert first["state"] == "running"
    assert (found["state"], found["live"]) == ("stopped", None)


def test_watching_a_failed_run_exits_with_1(door):
    """Scripts can test the exit code."""
    run = _submit("--json")
    door.ask("POST", f"/runs/{run}/stop")
    door.contexts.ledger.set_run_state(run, "failed", "the strategy raised")
    assert "the strategy raised" in _run("run", "status", "--watch", code=1).stdout


@pytest.mark.long
def test_refusals_are_listed(door):
    """A text replaces an empty table."""
    from fedloom.protocol.errors import Code, Refusal

    run = _submit()
    assert _run("run", "refusals").stdout == "No refusals.\n"
    door.contexts.refusals.add("ward-3", run, 1, Refusal(Code.NOT_FINITE, "w[3] is NaN."))
    output = _run("run", "refusals").stdout
    assert "not_finite" in output
    assert "w[3] is NaN." in output


@pytest.mark.long
@pytest.mark.parametrize("which", [(), ("digits",), ("digits", "--round", "0"), ("DIGEST",)])
def test_model_is_exported_and_verified(door, tmp_path, which):
    """The newest run's model, a run's, a round's, or a model by digest."""
    _submit()
    [model] = _json("model", "list")["models"]
    which = tuple(model["digest"][:8] if w == "DIGEST" else w for w in which)
    made = _json("model", "export", *which, "--out", "out.safetensors")
    data = (tmp_path / "out.safetensors").read_bytes()
    assert data == (tmp_path / "init.safetensors").read_bytes()
    assert made["digest"] == model["digest"] == hashlib.sha256(data).hexdigest()
    assert made["size_bytes"] == len(data)


@pytest.mark.long
def test_adapters_are_exported_into_a_folder_of_peft(door, tmp_path):
    """A model that is not of its configuration leaves the folder as it was."""
    _submit()
    folder = tmp_path / "adapter"
    folder.mkdir()
    assert "peft_config" in _run("model", "export", "--peft", "adapter", code=2).stderr
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2}')
    assert "a model of adapters" in _run("model", "export", "--peft", "adapter", code=2).stderr
    assert [path.name for path in folder.iterdir()] == ["adapter_config.json"]
    write_file(
        tmp_path / "lora.safetensors",
        {"base_model.model.w.lora_A.weight": np.ones((2, 3), np.float32)},
    )
    digest = _json("model", "upload", "lora.safetensors")["digest"]
    made = _json("model", "export", digest, "--peft", "adapter")
    assert made["file"] == "adapter/adapter_model.safetensors"
    found = (folder / "adapter_model.safetensors").read_bytes()
    assert found == (tmp_path / "lora.safetensors").read_bytes()


@pytest.mark.long
def test_damaged_model_is_not_exported(door, tmp_path):
    """Exit 4, and the existing file is kept."""
    _submit()
    [model] = _json("model", "list")["models"]
    door.contexts.models.path(model["digest"]).write_bytes(b"rotten")
    (tmp_path / "out.safetensors").write_bytes(b"before")
    _run("model", "export", "--out", "out.safetensors", code=4)
    assert (tmp_path / "out.safetensors").read_bytes() == b"before"
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.long
@pytest.mark.parametrize("which", [("nothing",), ("digits", "--round", "7"), ("0" * 12,)])
def test_model_that_does_not_exist_is_not_exported(door, tmp_path, which):
    """Exit 2, and no file is written."""
    _submit()
    _run("model", "export", *which, "--out", "out.safetensors", code=2)
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.long
def test_too_large_model_is_refused_during_upload(tmp_path, monkeypatch):
    """The server responds early and closes the connection; the error still arrives."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(RUN_TOML)
    write_model(tmp_path / "init.safetensors", size=8 << 20)
    with Door(tmp_path / "state", max_model_bytes=1000):
        args = ("run", "submit", "run.toml", "--model", "init.safetensors")
        assert "max_model_bytes" in _run(*args, "--dir", "state", code=2).stderr


# ---- no server -----------------------------------------------------------------------------------


def test_no_server_running_is_exit_5(tmp_path):
    """The error has the command that starts it."""
    state = str(tmp_path / "state")
    _run("server", "init", "--dir", state)
    assert f"fedloom server run --dir {state}" in _run("run", "list", "--dir", state, code=5).stderr


def test_no_server_at_all_is_exit_2(tmp_path):
    """The error names FEDLOOM_DIR and `fedloom server init`."""
    output = _run("run", "list", "--dir", str(tmp_path / "state"), code=2).stderr
    assert "FEDLOOM_DIR" in output
    assert "fedloom server init" in output


@pytest.mark.long
def test_promotion_and_rollback_print_their_consequence(door):
    """--preview prints the same text as the action."""
    run = _submit()
    said = _run("model", "promote", run, "--preview").stdout
    assert "becomes the one that clients use" in said
    assert door.contexts.ledger.promoted() is None
    assert _run("model", "promote", run, "--note", "first", "--yes").stdout == said
    assert door.contexts.ledger.promoted().note == "first"
    assert "nothing changes" in _run("model", "rollback", run, "0").stdout
    assert _json("model", "rollback", run, "0")["changed"] is False
    _run("model", "rollback", run, "3", "--yes", code=2)
