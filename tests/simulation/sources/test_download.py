"""Known sets are downloaded on request and checked; no partial file remains."""

import hashlib
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.simulation.sources import download
from fedloom.simulation.sources.download import KnownFile, KnownSet

CONTENT = bytes(range(256)) * 2000


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Suppress the access log."""


@pytest.fixture
def address(tmp_path):
    """A server on loopback with one file."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "set.bin").write_bytes(CONTENT)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def _file(address, **changes):
    given = {
        "name": "set.bin",
        "url": f"{address}/set.bin",
        "size_bytes": len(CONTENT),
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        **changes,
    }
    return KnownFile(**given)


def test_a_set_is_downloaded_once_on_request(address, tmp_path, monkeypatch):
    """To its folder in the cache; later no download is needed."""
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path / "cache"))
    known = KnownSet(name="set", files=(_file(address),))
    with pytest.raises(UsageError, match=r"to download 0\.512 MB from 127\.0\.0\.1"):
        download.locate(known, folder=None, download=False)
    where = download.locate(known, folder=None, download=True)
    assert where == tmp_path / "cache" / "set"
    assert (where / "set.bin").read_bytes() == CONTENT
    gone = KnownSet(name="set", files=(_file("http://127.0.0.1:1"),))
    assert download.locate(gone, folder=None, download=True) == where
    other = download.locate(known, folder=str(tmp_path / "mine"), download=True)
    assert (other / "set.bin").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sha256": "0" * 64}, "with SHA-256 0{64}, got 512000 with"),
        ({"size_bytes": len(CONTENT) + 1}, "to be 512001 bytes .* got 512000"),
        ({"size_bytes": 1000}, "to be 1000 bytes"),
    ],
)
def test_another_file_is_refused_and_removed(address, tmp_path, changes, message):
    with pytest.raises(UsageError, match=message):
        download.fetch(_file(address, **changes), tmp_path / "mine")
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_failed_download_is_an_error_and_leaves_no_file(address, tmp_path):
    for url in (f"{address}/none.bin", "http://127.0.0.1:1/set.bin"):
        with pytest.raises(UnavailableError, match="Try again, or download it elsewhere"):
            download.fetch(_file(address, url=url), tmp_path / "mine")
    with pytest.raises(UsageError, match="over https or http"):
        download.fetch(_file(address, url="file:///etc/hosts"), tmp_path / "mine")
    assert list((tmp_path / "mine").iterdir()) == []


def test_the_default_cache_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path / "data"))
    assert download.data_folder() == tmp_path / "data"
    monkeypatch.delenv("FEDLOOM_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert download.data_folder() == tmp_path / "fedloom" / "data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert download.data_folder() == tmp_path / ".cache" / "fedloom" / "data"
