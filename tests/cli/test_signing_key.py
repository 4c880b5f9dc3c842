"""`fedloom server rotate-signing-key`: a new key that the old one vouches for."""

import json

from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.protocol.trust.signing import Verifier
from fedloom.server.commands import create
from fedloom.server.pki.signing_key import FOLDER, SigningKey


def test_rotating_says_both_keys_and_keeps_the_old_one_s_word(tmp_path):
    """For people in eights, for machines in hex."""
    create(tmp_path, "ward", "127.0.0.1:0", "127.0.0.1:0", ())
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


def test_there_must_be_a_server_to_rotate_the_key_of(tmp_path):
    """A folder that was mistyped gets no key."""
    done = CliRunner().invoke(main, ["server", "rotate-signing-key", "--dir", str(tmp_path / "no")])
    assert done.exit_code == 2
    assert not (tmp_path / "no").exists()
