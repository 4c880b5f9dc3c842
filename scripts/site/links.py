"""Checks the links of a built site, without a network.

Independent of MkDocs: it reads the HTML. Internal links and anchors must exist; links to other
sites must be well-formed; nothing may be loaded from another site, and nothing may be inline that
the console's content security policy forbids.
"""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """The anchors and links of a page, and what the policy forbids in it."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.loads, self.forbidden = {""}, [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        """Note what an element links to."""
        values = dict(attrs)
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADED and values.get(LOADED[tag]):
            self.loads.append(values[LOADED[tag]])
        if tag == "style" or "style" in values:
            self.forbidden.append(f"an inline style in <{tag}>: {values.get('style', '')}")
        if tag == "script" and "src" not in values and values.get("type") != "application/json":
            self.forbidden.append("an inline script")
        self.forbidden += [f"{name} in <{tag}>" for name in values if name.startswith("on")]


def faults(site):
    """What is wrong with a built site, one line each.

    Args:
        site: its folder.
    """
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(Path(site).rglob("*.html"))}
    found = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links are absolute; the server has its own
        name = path.relative_to(site)
        found += [f"{name}: {fault}" for fault in page.forbidden]
        found += [f"{name}: loads {url} of another site" for url in page.loads if _elsewhere(url)]
        for link in [*page.links, *(url for url in page.loads if not _elsewhere(url))]:
            if (fault := _fault(link, path, pages)) is not None:
                found.append(f"{name}: {link}: {fault}")
    return found


def _elsewhere(url):
    return url.startswith(("http:", "https:", "//"))


def _fault(link, path, pages):
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        known = parts.scheme in ("http", "https") and parts.hostname
        return None if known or parts.scheme in ("mailto", "data") else "not a well-formed address"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return "no such file"
    anchor = unquote(parts.fragment)
    if target in pages and anchor not in pages[target].anchors and not anchor.startswith("only-"):
        return "no such anchor"
    return None
