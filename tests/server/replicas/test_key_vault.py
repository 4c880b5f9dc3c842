"""A server's keys in the ledger: what the next server gets, and what it is refused."""

import pytest

from fedloom.protocol.errors import UsageError
from fedloom.server.ledger import Ledger
from fedloom.server.replicas.key_vault import MASTER_KEY, KeyVault

KEYS = {
    "pki/root.pem": b"the root",
    "pki/issuing.pem": b"an issuing key",
    "signing/key.json": b'{"private": "a signing key"}',
    "noise/run-1.key": b"\x00\x01 a key of noise",
}


@pytest.fixture
def ledger(tmp_path):
    made = Ledger.in_directory(tmp_path)
    yield made
    made.close()


@pytest.fixture
def first(tmp_path, ledger):
    """The folder of a server whose keys are in the ledger."""
    folder = tmp_path / "first"
    for name, key in KEYS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(key)
        path.chmod(0o600)
    (folder / "pki/root.key").write_bytes(b"kept offline")
    (folder / "pki/server.pem").write_bytes(b"of this machine")
    KeyVault(folder, ledger).restore()
    return folder


def replica(first, name="second"):
    folder = first.parent / name
    folder.mkdir()
    key = folder / MASTER_KEY
    key.write_bytes((first / MASTER_KEY).read_bytes())
    key.chmod(0o600)
    return folder


def files(folder):
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_another_server_gets_the_keys(first, ledger):
    """Each in its file, for its owner alone; not those that are of one machine."""
    second = replica(first)
    KeyVault(second, ledger).check()
    KeyVault(second, ledger).restore()
    found = files(second)
    del found[MASTER_KEY]
    assert found == KEYS
    assert all((second / name).stat().st_mode & 0o077 == 0 for name in KEYS)


def test_the_ledger_holds_no_key_in_clear(first, ledger):
    """Nor any part of one, nor the master key; equal keys look different."""
    vault = KeyVault(first, ledger)
    vault.write(first / "noise/a.key", b"same key of noise")
    vault.write(first / "noise/b.key", b"same key of noise")
    rows = ledger.wrapped_keys()
    assert rows.keys() == {*KEYS, "noise/a.key", "noise/b.key"}
    stored = b"".join(rows.values())
    for key in (*KEYS.values(), b"same key", (first / MASTER_KEY).read_bytes().strip()):
        assert key not in stored
    assert rows["noise/a.key"] != rows["noise/b.key"]


def test_a_changed_key_reaches_the_other_server(first, ledger):
    """The ledger's replaces the file's."""
    second = replica(first)
    KeyVault(second, ledger).restore()
    KeyVault(first, ledger).write(first / "signing/key.json", b"rotated")
    KeyVault(second, ledger).restore()
    assert (first / "signing/key.json").read_bytes() == b"rotated"
    assert (second / "signing/key.json").read_bytes() == b"rotated"


def test_a_key_is_in_the_ledger_before_it_is_in_its_file(first, ledger, monkeypatch):
    """A server that is killed in between has used no key that others lack."""

    def killed(*_):
        raise KeyboardInterrupt

    vault = KeyVault(first, ledger)
    monkeypatch.setattr("fedloom.server.replicas.key_vault.write_private", killed)
    with pytest.raises(KeyboardInterrupt):
        vault.write(first / "noise/new.key", b"new")
    monkeypatch.undo()
    second = replica(first)
    KeyVault(second, ledger).restore()
    assert (second / "noise/new.key").read_bytes() == b"new"


def test_a_sealed_key_under_another_name_is_refused(first, ledger):
    """Whoever can write the database cannot swap keys."""
    rows = ledger.wrapped_keys()
    swapped = {"noise/run-1.key": rows["signing/key.json"]}
    ledger.change_wrapped_keys(lambda _: swapped)
    with pytest.raises(UsageError, match="cannot be decrypted"):
        KeyVault(first, ledger).restore()


@pytest.mark.parametrize("content", [None, b"f0" * 32, b"not hexadecimal", b"f0" * 16])
def test_a_server_without_the_master_key_is_refused(first, ledger, content):
    """Before it is its turn, with what to do; nothing is written."""
    second = replica(first)
    (second / MASTER_KEY).unlink()
    if content is not None:
        (second / MASTER_KEY).write_bytes(content)
        (second / MASTER_KEY).chmod(0o600)
    for step in (KeyVault(second, ledger).check, KeyVault(second, ledger).restore):
        with pytest.raises(UsageError, match="copy it from another replica"):
            step()
    assert files(second).keys() <= {MASTER_KEY}
