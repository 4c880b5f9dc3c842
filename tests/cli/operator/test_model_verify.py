"""`fedloom model verify`: a model's signature is verified offline."""

import hashlib
import json

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.protocol.trust.signing import MODEL, Signer, fingerprint


def _run(*words, code=0):
    done = CliRunner().invoke(main, ["model", "verify", *words])
    assert done.exit_code == code, done.output + done.stderr
    return done.output + done.stderr


@pytest.fixture
def signer():
    """An earlier signing key, and the present key, which it signed."""
    before = Signer.new()
    return before, before.successor()


@pytest.fixture
def files(tmp_path, signer):
    """A model and its signature, as exported by a server."""
    model, word = tmp_path / "m.safetensors", tmp_path / "m.json"
    model.write_bytes(b"some model")
    digest = hashlib.sha256(b"some model").hexdigest()
    statement = json.dumps({"digest": digest, "federation": "north", "round": 7, "run": "wards-1"})
    signed = signer[1].signature(MODEL, statement.encode())
    document = {
        "statement": statement,
        "key": signer[1].public.hex(),
        "message": signed.SerializeToString().hex(),
    }
    word.write_text(json.dumps(document))
    return str(model), word, document


def test_model_that_was_signed_is_verified(files, signer):
    """By the present key, by an earlier key, or by the key in the file."""
    model, word, _ = files
    for key in (signer[1].public.hex(), fingerprint(signer[0].public)):
        told = _run(model, "--signature", str(word), "--key", key)
        assert "round 7 of wards-1 in the federation 'north'" in told
        assert "compare it" not in told
    assert "compare it with one that you know" in _run(model, "--signature", str(word))


def test_other_files_are_refused(files, tmp_path):
    """Another file, key or statement: exit 4. An unreadable signature or key: exit 2."""
    model, word, document = files
    stranger = Signer.new().public.hex()
    assert "federation's key" in _run(model, "--signature", str(word), "--key", stranger, code=4)
    _run(model, "--signature", str(word), "--key", "abc", code=2)
    (tmp_path / "other").write_bytes(b"some modem")
    told = _run(str(tmp_path / "other"), "--signature", str(word), code=4)
    assert "another file" in told
    changed = {**document, "statement": document["statement"].replace("7", "8")}
    for bad, code in ((json.dumps(changed), 4), ("{}", 2), ("[", 2)):
        word.write_text(bad)
        _run(model, "--signature", str(word), code=code)
