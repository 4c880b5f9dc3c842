"""Renders pages from Jinja templates with autoescaping and the values that all pages use.

With `?part=live`, which browsers request after an event of the server, only the block `live` is
rendered. Equal requests within one version of the hub share one rendering.
"""

import hashlib
import time
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fedloom.server.access.principal import Principal
from fedloom.server.ledger.access.accounts import Scope
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.web import words

HERE = Path(__file__).parent
STATIC = HERE / "static"

PLACES = (
    ("overview", "/", "Overview"),
    ("runs", "/runs", "Runs"),
    ("clients", "/clients", "Clients"),
    ("models", "/models", "Models"),
    ("privacy", "/privacy", "Privacy"),
    ("enrolment", "/enrolment", "Enrolment"),
    ("audit", "/audit", "Audit"),
    ("logs", "/logs", "Logs"),
)
"""Name, path and title of each page in the navigation."""


@cache
def static(path: str) -> str:
    """URL of a static file, with a stamp of its content."""
    stamp = hashlib.sha256((STATIC / path).read_bytes()).hexdigest()[:10]
    return f"/static/{path}?v={stamp}"


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters = "size", "count", "figure", "span", "ago", "iso", "exact", "plain", "slug", "plural"
    made.filters |= {name: getattr(words, name) for name in filters}
    made.globals.update(static=static, share=words.share, plural=words.plural, places=PLACES)
    made.filters["later"] = lambda seconds: time.time() + seconds
    made.globals["ui"] = made.get_template("macros.html").module
    made.globals["rounds_ui"] = made.get_template("round_now.html").module
    return made


_jinja = _environment()


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
        "who": who,
        "may_act": who.scope.covers(Scope.OPERATOR),
        "may_manage": who.scope.covers(Scope.ADMIN),
        "csrf": who.csrf,
        "path": request.url.path,
        "part_url": part_url(request),
        **more,
    }
    found = _jinja.get_template(f"{template}.html")
    if request.query_params.get("part") == "live" and "live" in found.blocks:
        drawn = found.new_context(known)
        text = "".join(found.blocks["live"](drawn))
    else:
        text = found.render(known)
    return HTMLResponse(text, status, headers={"cache-control": "no-store"})


def part_url(request: Request) -> str:
    """URL of a page's live part."""
    query = request.url.remove_query_params("part").remove_query_params("focus").query
    return f"{request.url.path}?{query + '&' if query else ''}part=live"


def trusted(text: str) -> Markup:
    """Mark text as HTML that needs no escaping."""
    return Markup(text)  # noqa: S704 - made by our own code, never from user input
