"""Errors of damaged identity files: which file, what was expected, its content, and what to do."""

import asyncio
import shutil
from dataclasses import replace

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.client import Agent
from fedloom.client.config import load
from fedloom.client.identity.enrol import enrol
from fedloom.client.state import identity_files
from fedloom.client.state.store import ClientStore
from fedloom.protocol.errors import FedloomError, IntegrityError, UsageError
from fedloom.protocol.trust.identity import generate_key, key_to_pem
from fedloom.protocol.trust.private_files import write_private
from support.agents import Adder
from support.patience import PATIENCE_S


@pytest.fixture(scope="module")
def pristine(runner, federation, tmp_path_factory):
    """Folders of two enrolled devices, which tests do not change."""
    folder = tmp_path_factory.mktemp("devices")
    for name in ("ann", "bob"):
        token = federation.add_token(name).text()
        port = federation.server.enrolment_port
        runner.run(enrol(f"127.0.0.1:{port}", token, folder / name / "client.toml"))
        ClientStore(folder / name / "client-state").noise_key()
    return folder


@pytest.fixture
def device(pristine, tmp_path):
    """A copy of the first device, which a test may damage."""
    shutil.copytree(pristine, tmp_path / "devices")
    return tmp_path / "devices" / "ann"


def of(path, name):
    return (path.parent / name).read_bytes()


def of_bob(path):
    return (path.parents[2] / "bob" / "client-state" / path.name).read_bytes()


def unterminated(path):
    data = path.read_bytes()
    return data[: data.index(b"-----END CERTIFICATE")]


def with_keys(path):
    return path.read_bytes().split(b"-----BEGIN CERTIFICATE")[0]


def with_bobs_key(path):
    certificates = path.read_bytes().split(b"-----END PRIVATE KEY-----\n")[1]
    return key_to_pem(generate_key()) + certificates


EMPTY = {"empty": (lambda _: b"", "got an empty file")}
ZEROS = {"zeros": (lambda _: bytes(4096), "got 4096 blank bytes")}
GARBAGE = {"garbage": (lambda _: b"\xff\x00garbage", "got 9 bytes of something else")}
PEM = EMPTY | ZEROS | GARBAGE
BROKEN = {
    "identity.pem": PEM
    | {
        "the root": (lambda p: of(p, "root.pem"), r"got a certificate \(of CN=.*\)"),
        "truncated": (unterminated, "got a private key and a certificate, truncated"),
        "half a key": (lambda p: p.read_bytes()[:90], "got a private key, truncated"),
        "a key alone": (with_keys, "got a private key. Restore"),
        "another's key": (with_bobs_key, "do not match"),
        "the signing key": (lambda p: of(p, "signing.pub"), "got 65 bytes of something else"),
    },
    "root.pem": PEM
    | {
        "the identity": (
            lambda p: of(p, "identity.pem"),
            r"got a private key and 2 certificates \(of ann\)",
        ),
        "truncated": (unterminated, "got a certificate, truncated"),
        "a leaf": (
            lambda p: b"-----BEGIN C" + of(p, "identity.pem").split(b"-----BEGIN C", 1)[1],
            r"got 2 certificates \(of ann\)",
        ),
    },
    "signing.pub": PEM
    | {
        "truncated": (lambda p: p.read_bytes()[:-9], "got 56 bytes of something else"),
        "no hex": (lambda p: b"x" * 64, "got 64 bytes of something else"),
        "the root": (lambda p: of(p, "root.pem"), r"got a certificate \(of CN="),
    },
}
CASES = [(file, name) for file, cases in BROKEN.items() for name in cases]


def start_error(device):
    config = replace(load(device / "client.toml"), reconnect_s=0.1)
    with pytest.raises(FedloomError) as caught:
        asyncio.run(asyncio.wait_for(Agent(Adder(), config).run(), PATIENCE_S))
    return caught


@pytest.mark.parametrize(("file", "name"), CASES, ids=map(" ".join, CASES))
def test_the_error_of_a_damaged_file_names_its_content_and_the_remedy(device, file, name):
    """It is raised before connecting, and shows no byte of a key."""
    path = device / "client-state" / file
    contents, words = BROKEN[file][name]
    write_private(path, contents(path))
    caught = start_error(device)
    assert caught.type is IntegrityError
    text = str(caught.value)
    assert str(path) in text
    assert text.startswith("Expected ")
    assert "enrol again with a new token" in text
    assert "PRIVATE KEY" not in text
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(text)
    found = CliRunner().invoke(main, ["client", "doctor", "--config", str(device / "client.toml")])
    assert f"{file}, got " in " ".join(found.output.split())


@pytest.mark.parametrize("file", ["identity.pem", "root.pem"])
def test_a_missing_file_is_named(device, file):
    """If only one of the two is missing; without both, the device is not enrolled."""
    (device / "client-state" / file).unlink()
    caught = start_error(device)
    assert caught.type is UsageError
    assert f"{device / 'client-state' / file} is missing. Restore it" in str(caught.value)


@pytest.mark.parametrize("file", ["identity.pem", "root.pem", "signing.pub"])
def test_an_unreadable_file_is_named(device, monkeypatch, file):
    """A folder, another user's file, or a file that other users may read."""
    path = device / "client-state" / file
    path.chmod(0o644)
    assert f"Expected mode 600 of {path}" in str(start_error(device).value)
    data = path.read_bytes()
    path.unlink()
    path.mkdir()
    assert f"cannot read {path}: Is a directory. Run this as" in str(start_error(device).value)
    path.rmdir()
    write_private(path, data)
    real = identity_files.read_private

    def refuse(asked):
        if asked == path:
            raise PermissionError(13, "Permission denied", str(path))
        return real(asked)

    monkeypatch.setattr(identity_files, "read_private", refuse)
    assert f"cannot read {path}: Permission denied. Run" in str(start_error(device).value)


def test_a_damaged_noise_key_is_refused(device):
    """A short or known key would let others remove the noise."""
    store = ClientStore(device / "client-state")
    path = store.directory / "noise.key"
    for data in (b"", b"\1" * 31, of(path, "identity.pem")):
        write_private(path, data)
        with pytest.raises(IntegrityError, match=r"32 secret bytes in .*noise\.key, got "):
            store.noise_key()


def test_windows_line_endings_are_accepted(device):
    """An editor may have changed them."""
    path = device / "client-state" / "identity.pem"
    write_private(path, path.read_bytes().replace(b"\n", b"\r\n").rstrip())
    assert identity_files.read(path.parent).peer.client == "ann"


TOML = {
    "empty": (b"", r"Missing setting server \(text\) and state_dir \(a path\)"),
    "truncated": (b'server = "local', "Expected settings as TOML, got: .* Correct that line"),
    "binary": (b"\xff\xfe", "Expected settings as text in UTF-8, got the byte 0xff at 0. Restore"),
}


@pytest.mark.parametrize("name", TOML)
def test_a_damaged_client_toml_is_named(device, name):
    contents, words = TOML[name]
    path = device / "client.toml"
    path.write_bytes(contents)
    with pytest.raises(UsageError, match=words) as caught:
        load(path, {})
    assert str(path) in str(caught.value)


def test_another_devices_identity_is_accepted(device):
    """No file of a device tells which client it is, except its identity."""
    path = device / "client-state" / "identity.pem"
    write_private(path, of_bob(path))
    assert identity_files.read(path.parent).peer.client == "bob"
