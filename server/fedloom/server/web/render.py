"""Renders pages from Jinja templates with autoescaping and the values that all pages use.

With `?part=live`, which browsers request after an event of the server, only the block `live` is
rendered. Equal requests within one version of the hub share one rendering.
"""

import hashlib
import re
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from fedloom.server.access.principal import Principal
from fedloom.server.access.studies import is_open
from fedloom.server.ledger.access.accounts import Scope
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.web import words

HERE = Path(__file__).parent
STATIC = HERE / "static"

PLACES = (
    ("overview", "/", "Overview", "o"),
    ("runs", "/runs", "Runs", "r"),
    ("clients", "/clients", "Clients", "c"),
    ("models", "/models", "Models", "m"),
    ("privacy", "/privacy", "Privacy", "p"),
    ("enrolment", "/enrolment", "Enrolment", "e"),
    ("audit", "/audit", "Audit", "a"),
    ("logs", "/logs", "Logs", "l"),
)
"""Name, path, title and key of each page in the navigation; `web.NAME.NAME` is its route."""


@cache
def static(path: str) -> str:
    """URL of a static file, with a stamp of its content."""
    stamp = hashlib.sha256((STATIC / path).read_bytes()).hexdigest()[:10]
    return f"/static/{path}?v={stamp}"


def _coded(text: str) -> Markup:
    """Text with `commands` in the font of code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters = (
        "size", "size_down", "count", "figure", "measure", "span", "ago", "iso", "exact", "plain",
        "slug", "plural",
    )  # fmt: skip
    made.filters |= {name: getattr(words, name) for name in filters}
    made.globals.update(static=static, share=words.share, plural=words.plural, left=words.left)
    made.filters["coded"] = _coded
    made.filters["later"] = lambda seconds: time.time() + seconds
    made.globals["ui"] = made.get_template("macros.html").module
    made.globals["rounds_ui"] = made.get_template("round_now.html").module
    return made


_jinja = _environment()


def enrol_at(context: ConsoleContext) -> str:
    """host:port where devices enrol, with the first certificate name that is not loopback."""
    host, _, port = context.enrolment_address.rpartition(":")
    if host not in ("0.0.0.0", "::", "[::]"):  # noqa: S104 - compared, not bound
        return context.enrolment_address
    far = [name for name in context.config.names if name not in ("localhost", "127.0.0.1")]
    return f"{(far or ['localhost'])[0]}:{port}"


def page(
    request: Request,
    context: ConsoleContext,
    who: Principal,
    template: str,
    *,
    status: int = 200,
    **more: Any,
) -> HTMLResponse:
    """Render a page, or its live part if the request asks for that.

    Args:
        request: of the browser.
        context: the console's context.
        who: the principal that views the page.
        template: name of its file, without `.html`.
        status: HTTP status of the answer.
        more: values for this template, beside the common ones.
    """
    known = {
        "now": time.time(),
        "federation": context.config.federation,
        "enrol_at": enrol_at(context),
        "who": who,
        "may_open": partial(is_open, who),
        "places": [each for each in PLACES if is_open(who, f"web.{each[0]}.{each[0]}")],
        "may_act": who.scope.covers(Scope.OPERATOR),
        "may_manage": who.scope.covers(Scope.ADMIN),
        "csrf": who.csrf,
        "path": request.url.path,
        "part_url": part_url(request),
        "version": _version(request, who),
    }
    taken = more.keys() & (known.keys() | _jinja.globals.keys())
    assert not taken, f"names of all pages: {taken}"
    known |= more
    found = _jinja.get_template(f"{template}.html")
    if request.query_params.get("part") == "live" and "live" in found.blocks:
        drawn = found.new_context(known)
        text = "".join(found.blocks["live"](drawn))
    else:
        text = found.render(known)
    return HTMLResponse(text, status, headers={"cache-control": "no-store"})


def _version(request: Request, who: Principal) -> int:
    """The hub's version before the page was read, which the browser compares with the stream's.

    If they differ, it requests the live part, because a change between the two is in no event.
    Users of a study must not learn how much changes in others: their pages have -1, which always
    differs.
    """
    return -1 if who.studies is not None else getattr(request.state, "version", -1)


def part_url(request: Request) -> str:
    """URL of a page's live part."""
    query = request.url.remove_query_params("part").remove_query_params("focus").query
    return f"{request.url.path}?{query + '&' if query else ''}part=live"


def trusted(text: str) -> Markup:
    """Mark text as HTML that needs no escaping."""
    return Markup(text)  # noqa: S704 - made by our own code, never from user input
