#!/usr/bin/env python3
"""The files of others that the console ships: as they were published, and with their licences.

`vendored.py` compares each with the checksum below; `--registry` fetches the packages from the npm
registry as well and compares what ships with what is in them. `--axe FOLDER` fetches axe-core,
which only the console's tests need and which does not ship.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parent.parent / "server/fedloom/server/web/static/vendor"

# File: package at version, path in the package, SHA-256.
FILES = {
    "htmx-4.0.1.min.js": (
        "htmx.org@4.0.1",
        "dist/htmx.min.js",
        "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
    ),
    "htmx-LICENSE.txt": (
        "htmx.org@4.0.1",
        "LICENSE",
        "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
    ),
    "uPlot-1.6.32.min.js": (
        "uplot@1.6.32",
        "dist/uPlot.iife.min.js",
        "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    ),
    "uPlot-1.6.32.min.css": (
        "uplot@1.6.32",
        "dist/uPlot.min.css",
        "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    ),
    "uPlot-LICENSE.txt": (
        "uplot@1.6.32",
        "LICENSE",
        "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    ),
}
AXE = (
    "axe-core@4.14.1",
    "axe.min.js",
    "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c",
)


def main() -> int:
    """Check, and say what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--registry", action="store_true", help="compare with the npm registry")
    parser.add_argument("--axe", type=Path, metavar="FOLDER", help="fetch axe-core into a folder")
    arguments = parser.parse_args()
    if arguments.axe is not None:
        return fetch_axe(arguments.axe)
    wrong = [f"{name}: not as it was published" for name in FILES if not is_right(name)]
    wrong += [f"{path.name}: not listed" for path in VENDOR.iterdir() if path.name not in FILES]
    if arguments.registry:
        wrong += [f"{name}: the registry has another" for name in FILES if not is_published(name)]
    print("\n".join(wrong) or f"{len(FILES)} files of others, all as they were published")
    return 1 if wrong else 0


def is_right(name: str) -> bool:
    """Is a file what its checksum says?"""
    path = VENDOR / name
    return path.exists() and sha256(path.read_bytes()) == FILES[name][2]


def is_published(name: str) -> bool:
    """Is a file what its package holds?"""
    package, inner, wanted = FILES[name]
    return sha256(packed(package, inner)) == wanted


def fetch_axe(folder: Path) -> int:
    """Put axe where the tests look for it."""
    package, inner, wanted = AXE
    path = folder / inner
    if path.exists() and sha256(path.read_bytes()) == wanted:
        return 0
    if shutil.which("npm") is None:
        print("there is no npm: nobody asks axe about the console's pages")
        return 0
    data = packed(package, inner)
    if sha256(data) != wanted:
        print(f"{package} is not what it was")
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return 0


def packed(package: str, inner: str) -> bytes:
    """A file of a package, from the registry."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        [archive] = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as files:
            member = files.extractfile(f"package/{inner}")
            assert member is not None
            return member.read()


def sha256(data: bytes) -> str:
    """Hex digits."""
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
