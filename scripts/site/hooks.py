"""Hooks of the documentation site: what mkdocs.yml's plugins do not do.

- Pages under reference/ and notebooks/ are generated (`reference`, `notebooks`).
- A link to a file outside docs/ leads to a page under repository/ with that file, so that the site
  is whole without a network.
- Mermaid diagrams become pictures that scripts/site/diagrams.py drew: the library would need inline
  styles, which the console's content security policy forbids.
- Inline scripts of the theme become files, for the same reason.
"""

import hashlib
import posixpath
import re
import sys
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))
import diagrams
import notebooks
import reference
import repository

INLINE = re.compile(r"<script>(.+?)</script>", re.DOTALL)
MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"\[(?:[\w-]+/)*([\w-]+\.md)\]\(([\w./-]+\.md)(#[^)\s]*)?\)")
NOTEBOOK = re.compile(r"(\]\((?:[\w./-]*notebooks/)?[\w-]+)\.ipynb")
ICON = Path("server/fedloom/server/web/static/favicon.svg")

_scripts: dict[str, str] = {}


def on_files(files, config):
    """Add the generated pages, then those of the repository that pages link to."""
    pages = {**reference.pages(), **notebooks.pages()}
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    files.append(File.generated(config, "assets/favicon.svg", abs_src_path=str(ICON.resolve())))
    texts = {f.src_uri: f.content_string for f in files.documentation_pages()}
    for uri, made in repository.linked(texts).items():
        source = {"content": made} if isinstance(made, str) else {"abs_src_path": str(made)}
        files.append(File.generated(config, uri, **source))
    return files


def on_page_markdown(markdown, page, files, **_):
    """Replace diagrams by pictures, names of pages by titles, and links that leave docs/."""
    markdown = MERMAID.sub(lambda found: _picture(found[1], page), markdown)
    markdown = NAMED.sub(lambda found: _titled(found, page, files), markdown)
    markdown = NOTEBOOK.sub(r"\1.md", markdown)
    return repository.relinked(markdown, page.file.src_uri)


def _titled(found, page, files):
    """A link whose text is a file's name, with the page's title instead."""
    uri = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), found[2]))
    target = files.get_file_from_path(uri)
    title = target and re.match(r"# (.+)", target.content_string)
    return f"[{title[1]}]({found[2]}{found[3] or ''})" if title else found[0]


def _picture(source, page):
    name = diagrams.name_of(source)
    if not (diagrams.FOLDER / f"{name}-light.svg").exists():
        raise PluginError(f"{page.file.src_uri}: a diagram has no picture: run make diagrams")
    up = "../" * page.file.src_uri.count("/")
    alt = diagrams.alt_of(source)
    drawn = {t: f"{up}images/diagrams/{name}-{t}.svg" for t in ("light", "dark")}
    return "\n".join(
        f"![{alt}]({path}#only-{theme}){{ .diagram }}" for theme, path in drawn.items()
    )


def on_post_page(output, page, **_):
    """Move the theme's inline scripts to files."""
    up = "../" * page.file.dest_uri.count("/")

    def moved(found):
        name = f"assets/inline/{hashlib.sha256(found[1].encode()).hexdigest()[:12]}.js"
        _scripts[name] = found[1]
        return f'<script src="{up}{name}"></script>'

    output = output.replace('role="dialog">', 'role="dialog" aria-label="Search">')  # for readers
    return INLINE.sub(moved, output)


def on_post_build(config):
    """Write those scripts."""
    for name, text in _scripts.items():
        path = Path(config.site_dir) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
