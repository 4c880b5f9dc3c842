"""The documentation site at /docs: its files and nothing else, cached, read-only, for anybody."""

import re
import zipfile
from contextlib import contextmanager

import pytest

from fedloom.server.access.shield import HEADERS
from fedloom.server.web import mount
from fedloom.server.web.documentation import Documentation
from support.door import Door
from support.visitor import Visitor

FILES = {
    "index.html": "<h1>fedloom</h1>",
    "client.html": "<h1>The agent</h1>",
    "assets/javascripts/bundle.0123abcd.min.js": "let one = 1",
    "assets/site.css": "a{}",
    "search/search_index.json": "{}",
}


@contextmanager
def served(folder, files):
    """Somebody without a login, at a real server over TCP with a site of these files."""
    archive = folder / "documentation.zip"
    if files:
        with zipfile.ZipFile(archive, "w") as packed:
            for name, body in files.items():
                packed.writestr(name, body)
    (folder / "secret.html").write_text("secret")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mount, "Documentation", lambda: Documentation(archive))
        with Door(folder / "state", console="127.0.0.1:0") as door:
            yield Visitor(door.site)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """At a server with the site."""
    with served(tmp_path_factory.mktemp("site"), FILES) as visitor:
        yield visitor


@pytest.fixture(scope="module")
def stranger_without_site(tmp_path_factory):
    """At a server of a package that was built without it."""
    with served(tmp_path_factory.mktemp("bare"), {}) as visitor:
        yield visitor


def test_a_stranger_reads_every_file_with_the_consoles_policy(stranger):
    """Which allows no inline script; the media types are right, as browsers do not guess."""
    kinds = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8"}
    for name, body in FILES.items():
        answer = stranger.ask("GET", f"/docs/{name}")
        assert (answer.status, answer.text) == (200, body)
        assert answer.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
        ending = name.rsplit(".", 1)[1]
        assert answer.headers["content-type"] == kinds.get(ending, answer.headers["content-type"])
    assert stranger.ask("GET", "/docs/").text == FILES["index.html"]
    assert stranger.ask("GET", "/docs").status in (303, 307)
    assert stranger.ask("HEAD", "/docs/client.html").status == 200


def test_pages_are_asked_for_again_and_hashed_assets_are_not(stranger):
    """A page that has not changed is not sent again."""
    page = stranger.ask("GET", "/docs/client.html")
    assert page.headers["cache-control"] == "no-cache"
    again = stranger.ask("GET", "/docs/client.html", if_none_match=page.headers["etag"])
    assert (again.status, again.text) == (304, "")
    other = stranger.ask("GET", "/docs/index.html", if_none_match=page.headers["etag"])
    assert other.status == 200
    cached = stranger.ask("GET", "/docs/assets/javascripts/bundle.0123abcd.min.js")
    assert cached.headers["cache-control"] == "max-age=86400"
    assert stranger.ask("GET", "/docs/assets/site.css").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path",
    ["../secret.html", "%2e%2e/secret.html", "..%2fsecret.html", "//etc/passwd", "client.html/",
     "./client.html", "assets", "assets/", "client", "%00", "..\\secret.html", "C:/x", "x" * 5000],
)  # fmt: skip
def test_no_other_path_is_a_file(stranger, path):
    """Neither beside the archive nor a folder in it."""
    answer = stranger.ask("GET", f"/docs/{path}")
    assert answer.status in (404, 414, 400)
    assert "secret" not in answer.text.replace("secret.html", "")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_it_is_read_only(stranger, method):
    assert stranger.ask(method, "/docs/client.html").status == 405


def test_without_a_site_one_page_says_how_to_get_it(stranger_without_site):
    """A package that was built without it."""
    for path, status in {"": 200, "client.html": 404}.items():
        answer = stranger_without_site.ask("GET", f"/docs/{path}")
        assert answer.status == status
        assert "make docs" in answer.text
        assert answer.headers["cache-control"] == "no-store"


def test_the_page_without_a_site_names_files_that_exist(stranger_without_site):
    """Its icon too: a browser asks for /favicon.ico, which does not exist, if a page names none."""
    page = stranger_without_site.ask("GET", "/docs/").text
    links = re.findall(r'rel="(\w+)" href="([^"]+)"', page)
    assert {kind for kind, _ in links} == {"icon", "stylesheet"}
    for _, path in links:
        assert stranger_without_site.ask("GET", path).status == 200
