"""Broken files of an identity: which one, what was expected, what came, and what to do."""

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
    """A device that is enrolled, whose folder nobody changes, and another one."""
    folder = tmp_path_factory.mktemp("devices")
    for name in ("ann", "bob"):
        token = federation.add_token(name).text()
        port = federation.server.enrolment_port
        runner.run(enrol(f"127.0.0.1:{port}", token, folder / name / "client.toml"))
        ClientStore(folder / name / "client-state").noise_key()
    return folder


@pytest.fixture
def device(pristine, tmp_path):
    """A copy of it to break."""
    shutil.copytree(pristine, tmp_path / "devices")
    return tmp_path / "devices" / "ann"


def of(path, name):
    """Another file of the same folder."""
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
ZEROS = {"zeros": (lambda _: bytes(4096), "got 4096 bytes of nothing")}
GARBAGE = {"garbage": (lambda _: b"\xff\x00garbage", "got 9 bytes of something else")}
PEM = EMPTY | ZEROS | GARBAGE
BROKEN = {
    "identity.pem": PEM
    | {
        "the root": (lambda p: of(p, "root.pem"), r"got a certificate \(of CN=.*\)"),
        "truncated": (unterminated, "got a private key and a certificate, cut off"),
        "half a key": (lambda p: p.read_bytes()[:90], "got a private key, cut off"),
        "a key alone": (with_keys, "got a private key. Restore"),
        "another's key": (with_bobs_key, "got ones that do not fit each other"),
        "the signing key": (lambda p: of(p, "signing.pub"), "got 65 bytes of something else"),
    },
    "root.pem": PEM
    | {
        "the identity": (
            lambda p: of(p, "identity.pem"),
            r"got a private key and 2 times a certificate \(of ann\)",
        ),
        "truncated": (unterminated, "got a certificate, cut off"),
        "a leaf": (
            lambda p: b"-----BEGIN C" + of(p, "identity.pem").split(b"-----BEGIN C", 1)[1],
            r"got 2 times a certificate \(of ann\)",
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


def told(device):
    """What an agent says when it starts."""
    config = replace(load(device / "client.toml"), reconnect_s=0.1)
    with pytest.raises(FedloomError) as caught:
        asyncio.run(asyncio.wait_for(Agent(Adder(), config).run(), PATIENCE_S))
    return caught


@pytest.mark.parametrize(("file", "name"), CASES, ids=map(" ".join, CASES))
def test_a_broken_file_is_named_with_what_came_and_what_to_do(device, file, name):
    """Before anything is connected; and no byte of a key is shown."""
    path = device / "client-state" / file
    contents, words = BROKEN[file][name]
    write_private(path, contents(path))
    caught = told(device)
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
def test_a_file_that_is_gone_is_named(device, file):
    """Where the other is there; where both are gone the device is not enrolled."""
    (device / "client-state" / file).unlink()
    caught = told(device)
    assert caught.type is UsageError
    assert f"{device / 'client-state' / file}, got no such file. Restore it" in str(caught.value)


@pytest.mark.parametrize("file", ["identity.pem", "root.pem", "signing.pub"])
def test_a_file_that_cannot_be_read_is_named(device, monkeypatch, file):
    """It is a folder, somebody else's, or everybody's."""
    path = device / "client-state" / file
    path.chmod(0o644)
    assert f"Expected mode 600 of {path}" in str(told(device).value)
    data = path.read_bytes()
    path.unlink()
    path.mkdir()
    said = str(told(device).value)
    assert f"may read in {path}, got: Is a directory. Run this as" in said
    path.rmdir()
    write_private(path, data)
    real = identity_files.read_private

    def refuse(asked):
        if asked == path:
            raise PermissionError(13, "Permission denied", str(path))
        return real(asked)

    monkeypatch.setattr(identity_files, "read_private", refuse)
    assert f"may read in {path}, got: Permission denied. Run" in str(told(device).value)


def test_noise_is_never_drawn_from_a_broken_key(device):
    """Half a secret is none: anybody could take the noise off again."""
    store = ClientStore(device / "client-state")
    path = store.directory / "noise.key"
    for data in (b"", b"\1" * 31, of(path, "identity.pem")):
        write_private(path, data)
        with pytest.raises(IntegrityError, match=r"32 secret bytes in .*noise\.key, got "):
            store.noise_key()


def test_windows_line_endings_are_none_of_our_business(device):
    """A file that an editor went over is as good as it was."""
    path = device / "client-state" / "identity.pem"
    write_private(path, path.read_bytes().replace(b"\n", b"\r\n").rstrip())
    assert identity_files.read(path.parent).peer.client == "ann"


TOML = {
    "empty": (b"", r"Missing setting server \(text\) and state_dir \(a path\)"),
    "truncated": (b'server = "local', "Expected settings as TOML, got: .* Correct that line"),
    "binary": (b"\xff\xfe", "Expected settings as text in UTF-8, got the byte 0xff at 0. Restore"),
}


@pytest.mark.parametrize("name", TOML)
def test_a_broken_client_toml_is_named(device, name):
    """As any other file."""
    contents, words = TOML[name]
    path = device / "client.toml"
    path.write_bytes(contents)
    with pytest.raises(UsageError, match=words) as caught:
        load(path, {})
    assert str(path) in str(caught.value)


def test_another_devices_identity_is_as_good_as_any(device):
    """Nothing on this device says that it is not this one; the server knows who is who."""
    path = device / "client-state" / "identity.pem"
    write_private(path, of_bob(path))
    assert identity_files.read(path.parent).peer.client == "bob"
