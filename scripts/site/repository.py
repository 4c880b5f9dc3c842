"""Files of the repository outside docs/ that pages link to, as pages under repository/."""

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = "repository"
PICTURES = (".png", ".svg")
LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".yaml": "yaml",
    ".json": "json",
    ".proto": "protobuf",
}

_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_CODE = re.compile(r"(^( *)```.*?^\2```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def linked(texts):
    """What pages under repository/ there must be: site path → Markdown, or the file to copy.

    Args:
        texts: the site's other pages, site path → Markdown.
    """
    made, waiting = {}, list(texts.items())
    while waiting:
        uri, text = waiting.pop()
        for target in _outside(text, uri):
            place = _place(target)
            if place is None or place in made or place in texts:
                continue
            made[place] = found = _made(target)
            if isinstance(found, str):
                waiting.append((place, found))
    return made


def relinked(text, uri):
    """A page's Markdown with links to the pages of this module."""
    home = posixpath.dirname(uri)

    def to(found):
        target = _target(found[2], uri)
        place = None if target is None else _place(target)
        if place is None:
            return found[0]
        return f"{found[1]}{posixpath.relpath(place, home or '.')}{found[3] or ''}{found[4]}"

    return _outside_code(text, lambda prose: _LINK.sub(to, prose))


def _outside(text, uri):
    targets = []
    _outside_code(
        text, lambda p: targets.extend(_target(m[2], uri) for m in _LINK.finditer(p)) or p
    )
    return [target for target in targets if target is not None]


def _outside_code(text, change):
    parts, last = [], 0
    for code in _CODE.finditer(text):
        # A link's text may hold code: leave such code to the link.
        if text[: code.start()].endswith("[") or text[code.end() :].startswith("]("):
            continue
        parts += [change(text[last : code.start()]), code[0]]
        last = code.end()
    return "".join([*parts, change(text[last:])])


def _target(link, uri):
    """The path in the repository that a link of a page names; None if it is no such file."""
    if "://" in link or link.startswith(("mailto:", "#", "/")):
        return None
    inside = uri.startswith(f"{FOLDER}/")
    home = posixpath.dirname(uri.removeprefix(f"{FOLDER}/") if inside else f"docs/{uri}")
    home = home.removesuffix("/FILES") if inside else home
    target = posixpath.normpath(posixpath.join(home, link))
    if not inside and target.startswith("docs/"):
        return None
    return target if (ROOT / target).exists() and not target.startswith("..") else None


def _place(target):
    """The site path of a file or folder of the repository."""
    if target == "README.md":
        return "README.md"
    if target in ("docs", "docs/"):
        return "README.md"
    if target.startswith("docs/"):
        inner = target.removeprefix("docs/")
        return f"{inner}/README.md" if (ROOT / target).is_dir() else inner
    path = ROOT / target
    if path.is_dir():
        return f"{FOLDER}/{target}/README.md"
    target = target.lstrip(".")  # MkDocs leaves hidden files out
    kept = path.suffix in (*PICTURES, ".md")
    return f"{FOLDER}/{target}" if kept else f"{FOLDER}/{target}.md"


def _made(target):
    path = ROOT / target
    if path.is_dir():
        readme = path / "README.md"
        return readme.read_text("utf-8") if readme.exists() else _folder(path, target)
    if path.suffix in PICTURES:
        return path
    text = path.read_text("utf-8")
    return text if path.suffix == ".md" else _page(target, _shown(path, text))


def _folder(path, target):
    parts = []
    for each in sorted(path.iterdir()):
        try:
            parts.append(f"## {each.name}\n\n{_shown(each, each.read_text('utf-8'))}")
        except (UnicodeDecodeError, IsADirectoryError):
            size = f", {each.stat().st_size} bytes" if each.is_file() else ""
            parts.append(f"## {each.name}\n\nNot shown{size}.\n")
    return _page(target, "\n".join(parts))


def _page(title, body):
    return f"---\nsearch:\n  exclude: true\n---\n# {title}\n\n{body}"


def _shown(path, text):
    return f"````{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n````\n"
