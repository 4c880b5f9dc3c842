"""The documentation site at /docs, from the archive that `make docs` builds.

Anybody who reaches the console may read it: it has no data of this server, and says how to log in.
A path is a name in the archive or nothing, so no other file can be read. Its pages keep to the
console's content security policy.
"""

import asyncio
import threading
import zipfile
from pathlib import Path, PurePosixPath

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.types import Receive, Scope, Send

ARCHIVE = Path(__file__).parent / "documentation.zip"

KINDS = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
"""Media types of the archive's files; others are served as bytes."""

NOT_BUILT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Documentation · fedloom</title>
<link rel="icon" href="/static/favicon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/login/style.css"></head>
<body><main><h1>No documentation here</h1>
<p>This installation of fedloom was made without its documentation site. To have it here, run
<code>make docs</code> in a checkout before you install or build the package. The same pages are the
Markdown files in the folder <code>docs</code> of the checkout.</p>
<p><a href="/">Console</a></p></main></body></html>
"""


class Documentation:
    """An ASGI application that serves the files of the archive.

    Args:
        archive: of the built site; the page `NOT_BUILT` if there is none.
    """

    def __init__(self, archive: Path = ARCHIVE) -> None:
        self._archive = archive
        self._lock = threading.Lock()  # a ZipFile reads by one thread at a time
        self._files: zipfile.ZipFile | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or scope["method"] != "GET":  # HEAD comes as GET
            raise HTTPException(405, "Expected GET or HEAD.", {"Allow": "GET"})
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        answer = await asyncio.to_thread(self._answer, path.removeprefix("/"), Headers(scope=scope))
        await answer(scope, receive, send)

    def _answer(self, path: str, headers: Headers) -> Response:
        with self._lock:
            if self._files is None:
                if not self._archive.exists():
                    status = 404 if path else 200
                    return HTMLResponse(NOT_BUILT, status, {"Cache-Control": "no-store"})
                self._files = zipfile.ZipFile(self._archive)
            try:
                found = self._files.getinfo(path or "index.html")
            except KeyError:
                raise HTTPException(404, f"There is no page {path[:200]} at /docs.") from None
            tag = f'"{found.CRC:08x}-{found.file_size:x}"'
            # The names of assets change with their content; pages are asked for again.
            is_asset = path.startswith("assets/") and path.count(".") > 1
            about = {"ETag": tag, "Cache-Control": "max-age=86400" if is_asset else "no-cache"}
            if tag in headers.get("if-none-match", ""):
                return Response(status_code=304, headers=about)
            body = self._files.read(found)
        kind = KINDS.get(PurePosixPath(found.filename).suffix, "application/octet-stream")
        return Response(body, headers=about, media_type=kind)
