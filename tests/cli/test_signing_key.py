"""`fedloom server rotate-signing-key`: a new key, signed by the old one."""

import json

from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.protocol.trust.signing import Verifier
from fedloom.server.commands import create
from fedloom.server.pki.signing_key import FOLDER, SigningKey


def test_rotated_key_is_trusted_by_holders_of_the_old_one(tmp_path):
    """The text prints the keys in groups of eight digits, JSON in hex."""
    create(tmp_path, "ward", (), fleet="127.0.0.1:0", enrolment="127.0.0.1:0")
    before = SigningKey(tmp_path / FOLDER, "ward").signer
    known = Verifier({before.public})
    words = ["server", "rotate-signing-key", "--dir", str(tmp_path)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert before.public.hex()[:8] in done.output
    told = json.loads(CliRunner().invoke(main, [*words, "--json"]).output)
    now = SigningKey(tmp_path / FOLDER, "ward").signer
    assert (told["key"], told["rotations"]) == (now.public.hex(), 2)
    known.check("model", b"x", now.sign("model", b"x"))


def test_rotation_needs_a_server(tmp_path):
    """A mistyped folder is not created."""
    done = CliRunner().invoke(main, ["server", "rotate-signing-key", "--dir", str(tmp_path / "no")])
    assert done.exit_code == 2
    assert not (tmp_path / "no").exists()
