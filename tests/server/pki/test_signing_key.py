"""The signing key on disk: made once, rotated whole, picked up by a server that runs."""

import json

import pytest

from fedloom.protocol.errors import IntegrityError, UsageError
from fedloom.protocol.trust.signing import Verifier
from fedloom.protocol.v1 import enrolment_pb2
from fedloom.server.pki.signing_key import SigningKey


def test_a_key_is_made_once_and_only_its_owner_reads_it(tmp_path):
    """A restart signs by the same one."""
    first = SigningKey.ensure(tmp_path / "signing", "ward").signer.public
    assert SigningKey.ensure(tmp_path / "signing", "ward").signer.public == first
    (path,) = (tmp_path / "signing").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_running_server_signs_by_a_rotated_key(tmp_path):
    """Another process rotates; who knows the first key follows."""
    serving = SigningKey.ensure(tmp_path, "ward")
    known = Verifier({serving.signer.public})
    new = SigningKey(tmp_path, "ward").rotate()
    known.check("model", b"x", serving.sign("model", b"x"))
    assert known.keys == {new.public}
    issued = enrolment_pb2.IssuedCertificate()
    serving.tell(issued)
    assert issued.signing_key == new.public
    assert len(issued.signing_chain) == 1


def test_a_server_whose_key_file_vanishes_goes_on_with_the_one_in_hand(tmp_path):
    """The round of the others is not the place to fail."""
    serving = SigningKey.ensure(tmp_path, "ward")
    known = Verifier({serving.signer.public})
    (tmp_path / "key.json").unlink()
    known.check("model", b"x", serving.sign("model", b"x"))


@pytest.mark.parametrize(
    "text", ["", "{}", '{"private": "zz", "chain": []}', '{"private": "00", "chain": []}']
)
def test_a_broken_key_file_is_said_to_be_broken(tmp_path, text):
    """And never replaced: clients would be lost."""
    SigningKey.ensure(tmp_path, "ward")
    (tmp_path / "key.json").write_text(text)
    with pytest.raises(IntegrityError):
        SigningKey.ensure(tmp_path, "ward")
    assert (tmp_path / "key.json").read_text() == text


def test_rotating_where_there_is_no_key_says_what_makes_one(tmp_path):
    """Not a traceback."""
    with pytest.raises(UsageError, match="server init"):
        SigningKey(tmp_path, "ward")


def test_what_is_on_disk_is_the_whole_history(tmp_path):
    """One file: no crash parts a key from the words for it."""
    key = SigningKey.ensure(tmp_path, "ward")
    first = key.signer.public
    key.rotate()
    key.rotate()
    held = json.loads((tmp_path / "key.json").read_text())
    assert held["chain"][0]["by"] == first.hex()
    assert held["chain"][-1]["key"] == held["public"]
