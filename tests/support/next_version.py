"""The next version of fedloom: this one's sources with another number, and one more step."""

import shutil
from pathlib import Path

import fedloom.protocol
import fedloom.server
from fedloom.protocol.version import __version__
from fedloom.server.ledger.migrations import VERSION

NEXT = "99.0"
_STEP = f"""
STEPS = (*STEPS, Step(lambda connection: None, {VERSION}))
VERSION = len(STEPS)
"""


def next_version(folder):
    """Write it to a folder; the value of PYTHONPATH for its processes.

    Its ledger has a version more, with which servers of this version work.
    """
    root = folder / "next" / "fedloom"
    for package in (fedloom.protocol, fedloom.server):
        source = Path(package.__file__).parent
        shutil.copytree(source, root / source.name)
    _change(root / "protocol/version.py", f'"{__version__}"', f'"{NEXT}"')
    migrations = root / "server/ledger/migrations.py"
    _change(migrations, "VERSION = len(STEPS)\n", _STEP)
    return str(root.parent)


def _change(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1, path
    path.write_text(text.replace(old, new))
