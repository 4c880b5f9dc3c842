"""Keys of SuperNodes: what is read, and what proves a call."""

import subprocess

import pytest

pytest.importorskip("flwr", reason="needs Flower: make flower")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from fedloom.client.supernodes import keys
from fedloom.protocol.errors import UsageError

PUBLIC = serialization.PublicFormat


def test_ssh_and_pem_files_give_the_same_key(tmp_path):
    """The bytes that a SuperNode sends."""
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    ssh, pem = tmp_path / "key.pub", tmp_path / "key.pem"
    ssh.write_bytes(key.public_bytes(serialization.Encoding.OpenSSH, PUBLIC.OpenSSH) + b" me@host")
    pem.write_bytes(key.public_bytes(serialization.Encoding.PEM, PUBLIC.SubjectPublicKeyInfo))
    assert keys.public_key(ssh) == keys.public_key(pem) == pem.read_bytes()


def test_other_files_are_refused(tmp_path):
    """A private key, another kind of key, other text, and none."""
    private, other, text = tmp_path / "key", tmp_path / "rsa.pub", tmp_path / "text"
    words = ("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(private))
    subprocess.run(words, check=True)
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    other.write_bytes(made.public_bytes(serialization.Encoding.OpenSSH, PUBLIC.OpenSSH))
    text.write_text("no key")
    for path in (private, other, text, tmp_path / "none"):
        with pytest.raises(UsageError, match="Expected"):
            keys.public_key(path)
