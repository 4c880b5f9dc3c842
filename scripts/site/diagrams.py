#!/usr/bin/env python
"""Draws the Mermaid diagrams of docs/ as pictures, light and dark: `make diagrams`.

Needs chromium and npm. The pictures are committed; the site's build stops at one that is missing.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "images" / "diagrams"
VERSION = "11.12.0"
_BLOCK = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KINDS = {"flowchart": "Diagram", "sequenceDiagram": "Sequence diagram", "stateDiagram": "States"}


def name_of(source):
    """A picture's name, without theme and suffix."""
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def alt_of(source):
    """A text for readers who cannot see it: its kind, and the words in it."""
    kind = next((text for key, text in KINDS.items() if source.startswith(key)), "Diagram")
    words = re.findall(r'\["?([^\]"]+)|(?:participant \w+ as|: )(.*)', source)
    said = [re.sub(r"<br/?>|[\[\]*\"]", " ", a or b).strip() for a, b in words]
    return f"{kind}: {'; '.join(dict.fromkeys(said))}"


def sources():
    """Every diagram of docs/."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return [each for page in pages for each in _BLOCK.findall(page.read_text("utf-8"))]


def main():
    """Draw those that are missing, and remove those that no page has."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = {f"{name_of(s)}-{t}.svg": (s, t) for s in sources() for t in ("light", "dark")}
    for path in FOLDER.glob("*.svg"):
        if path.name not in wanted:
            path.unlink()
    missing = {name: job for name, job in wanted.items() if not (FOLDER / name).exists()}
    if missing:
        draw(missing)


def draw(jobs):
    """Draw diagrams in the system's browser."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        npm = ["npm", "pack", f"mermaid@{VERSION}", "--silent", "--pack-destination", folder]
        package = (
            Path(folder)
            / subprocess.run(npm, check=True, capture_output=True, text=True).stdout.split()[-1]
        )
        shutil.unpack_archive(package, folder, "gztar", filter="data")
        library = (Path(folder) / "package" / "dist" / "mermaid.min.js").read_text("utf-8")
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.set_content("<body></body>")
        page.add_script_tag(content=library)
        for name, (source, theme) in jobs.items():
            svg = page.evaluate(_DRAW, [source, "neutral" if theme == "light" else "dark"])
            short = re.sub(r"(\d\.\d\d)\d+", r"\1", svg.strip())
            (FOLDER / name).write_text(short + "\n", "utf-8")
            print(name)
        browser.close()


_DRAW = """async ([source, theme]) => {
  mermaid.initialize({startOnLoad: false, theme, htmlLabels: false, deterministicIds: true,
    flowchart: {htmlLabels: false}, fontFamily: "system-ui, sans-serif"});
  const {svg} = await mermaid.render("d", source);
  const box = document.createElement("div");
  box.innerHTML = svg;
  const drawn = box.firstChild;
  const [, , width, height] = drawn.getAttribute("viewBox").split(" ");
  drawn.setAttribute("width", Math.ceil(width));
  drawn.setAttribute("height", Math.ceil(height));
  return new XMLSerializer().serializeToString(drawn);
}"""


if __name__ == "__main__":
    sys.exit(main())
