"""Records of the devices in a sum, of which a parent learns only a salted digest.

A record is a file of JSON with the salt and the members. Its SHA-256 is the digest, so a site that
shows the file later proves which devices there were. The salt keeps the parent from trying names.

Invariant: the record is durable before the digest is sent, and does not change after that.
"""

import json
import secrets
from hashlib import sha256
from pathlib import Path

from fedloom.protocol.trust.private_files import private_directory, write_private
from fedloom.protocol.updates.site_members import Tree

SALT_BYTES = 32


def recorded(path: Path, members: Tree) -> str:
    """Store the record of a round; return the name of its members for the parent.

    To record equal members again gives the same name: the sum is sent again after a crash.

    Args:
        path: of the record.
        members: of the sum, sorted.
    """
    if not (path.exists() and json.loads(path.read_bytes())["members"] == members):
        private_directory(path.parent)
        text = json.dumps({"salt": secrets.token_hex(SALT_BYTES), "members": members}, indent=1)
        write_private(path, text.encode())
    return f"sha256:{sha256(path.read_bytes()).hexdigest()}"
