"""Pages from templates: one environment, escaped throughout, with what every page knows.

A page that is live draws its block `live` alone when it is asked for `?part=live`, which is what
the browser does when the server has told it of a change. What ten browsers ask for within one
version of the hub is drawn once.
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
from fedloom.server.ledger.accounts import Scope
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.web import words

HERE = Path(__file__).parent
STATIC = HERE / "static"

PLACES = (
    ("overview", "/", "Overview"),
    ("runs", "/runs", "Runs"),
    ("clients", "/clients", "Clients"),
    ("models", "/models", "Models"),
    ("enrolment", "/enrolment", "Enrolment"),
    ("audit", "/audit", "Audit"),
    ("logs", "/logs", "Logs"),
)
"""Name, path and title of what the navigation leads to."""


@cache
def static(path: str) -> str:
    """The address of a static file, which changes with its content."""
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
    for name in (
        "size",
        "count",
        "figure",
        "span",
        "ago",
        "iso",
        "exact",
        "plain",
        "slug",
        "plural",
    ):
        made.filters[name] = getattr(words, name)
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
    """A page, or its live part where that is asked for.

    Args:
        request: says which address it is.
        context: of the server.
        who: looks at it.
        template: its file, without `.html`.
        status: of the answer.
        more: what the template needs beside what every one has.
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
    """The address of a page's live part."""
    query = request.url.remove_query_params("part").remove_query_params("focus").query
    return f"{request.url.path}?{query + '&' if query else ''}part=live"


def trusted(text: str) -> Markup:
    """Text that is markup already, and ours."""
    return Markup(text)  # noqa: S704 - drawn by our own code from numbers alone
