"""Builds the documentation site, checks its links, and packs it for the server: `make docs`.

The server serves the archive at /docs. Two builds of the same files are the same bytes, except for
what the notebooks measure.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from links import faults
from PIL import Image

ROOT = Path(__file__).parents[2]
SITE = ROOT / "out" / "site"
ARCHIVE = ROOT / "server" / "fedloom" / "server" / "web" / "documentation.zip"
UNUSED = ("*.map", "assets/javascripts/lunr/**/*", "sitemap.xml*")
"""Not needed in an English site without an address of its own."""


def main():
    """Build, check and pack."""
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # its advice is in mkdocs.yml
    built = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if built.returncode:
        return built.returncode
    for pattern in UNUSED:
        for path in SITE.rglob(pattern) if "/" not in pattern else SITE.glob(pattern):
            if path.is_file():
                path.unlink()
    for path in SITE.rglob("*.png"):  # plots and screens: half the size, no visible change
        with Image.open(path) as picture:
            reduced = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        reduced.save(path, optimize=True)
    found = faults(SITE)
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    if found:
        return 1
    pack(SITE, ARCHIVE)
    num_pages = sum(1 for _ in SITE.rglob("*.html"))
    print(f"{num_pages} pages, {ARCHIVE.stat().st_size / 1e6:.1f} MB: {ARCHIVE.relative_to(ROOT)}")
    return 0


def pack(site, archive):
    """Write a site's files to an archive, in order and without times."""
    made = archive.with_suffix(".new")  # a server may be reading the old one
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for path in sorted(p for p in site.rglob("*") if p.is_file()):
            entry = zipfile.ZipInfo(path.relative_to(site).as_posix(), (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, path.read_bytes())
    made.replace(archive)


if __name__ == "__main__":
    sys.exit(main())
