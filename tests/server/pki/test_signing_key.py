"""The signing key on disk: created once, rotated atomically, reloaded by a running server."""

import json

import pytest

from fedloom.protocol.errors import IntegrityError, UsageError
from fedloom.protocol.trust.signing import Verifier
from fedloom.protocol.v1 import enrolment_pb2
from fedloom.server.pki.signing_key import SigningKey


def test_a_key_is_made_once_and_readable_only_by_its_owner(tmp_path):
    first = SigningKey.ensure(tmp_path / "signing", "ward").signer.public
    assert SigningKey.ensure(tmp_path / "signing", "ward").signer.public == first
    (path,) = (tmp_path / "signing").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_running_server_signs_by_a_rotated_key(tmp_path):
    """Another process rotates; clients that know the first key accept the second."""
    serving = SigningKey.ensure(tmp_path, "ward")
    known = Verifier({serving.signer.public})
    new = SigningKey(tmp_path, "ward").rotate()
    known.check("model", b"x", serving.sign("model", b"x"))
    assert known.keys == {new.public}
    issued = enrolment_pb2.IssuedCertificate()
    serving.tell(issued)
    assert issued.signing_key == new.public
    assert len(issued.signing_chain) == 1


def test_a_server_keeps_its_key_if_the_file_is_removed(tmp_path):
    serving = SigningKey.ensure(tmp_path, "ward")
    known = Verifier({serving.signer.public})
    (tmp_path / "key.json").unlink()
    known.check("model", b"x", serving.sign("model", b"x"))


@pytest.mark.parametrize(
    "text", ["", "{}", '{"private": "zz", "chain": []}', '{"private": "00", "chain": []}']
)
def test_a_damaged_key_file_is_reported(tmp_path, text):
    """It is never replaced, as clients would have to enrol again."""
    SigningKey.ensure(tmp_path, "ward")
    (tmp_path / "key.json").write_text(text)
    with pytest.raises(IntegrityError):
        SigningKey.ensure(tmp_path, "ward")
    assert (tmp_path / "key.json").read_text() == text


def test_rotating_a_missing_key_names_the_command(tmp_path):
    with pytest.raises(UsageError, match="server init"):
        SigningKey(tmp_path, "ward")


def test_key_and_endorsements_share_a_file(tmp_path):
    key = SigningKey.ensure(tmp_path, "ward")
    first = key.signer.public
    key.rotate()
    key.rotate()
    held = json.loads((tmp_path / "key.json").read_text())
    assert held["chain"][0]["by"] == first.hex()
    assert held["chain"][-1]["key"] == held["public"]
