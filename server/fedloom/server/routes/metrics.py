"""The route `/metrics` for Prometheus."""

import asyncio
import ipaddress
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from fedloom.server.access.principal import Principal
from fedloom.server.access.scopes import needs
from fedloom.server.http.dependencies import FAULTS, Context
from fedloom.server.ledger.access.accounts import Scope
from fedloom.server.metrics import scrape
from fedloom.server.queries.gauges import gauge_values

_TYPES = ("text/plain", "application/openmetrics-text")

_PASSED_ON = (
    "x-forwarded-for", "x-forwarded-host", "x-real-ip", "forwarded", "via", "origin",
    "sec-fetch-site",
)  # fmt: skip
"""Headers of proxies and browsers, which a local program does not send."""

_HERE = ("localhost", "127.0.0.1", "::1")

router = APIRouter(tags=["metrics"], responses=FAULTS)


class _Scraper(needs):
    """Requires a scope, except of programs on this machine if `metrics_open` is set."""

    async def __call__(self, request: Request) -> Principal:
        if request.app.state.context.config.metrics_open and _is_here(request):
            return Principal(name="metrics", scope=Scope.METRICS, how="loopback")
        return await super().__call__(request)


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {kind: {"schema": {"type": "string"}} for kind in _TYPES}}},
)
async def metrics(
    context: Context, request: Request, _: Annotated[Principal, Depends(_Scraper(Scope.METRICS))]
) -> Response:
    """All metrics in Prometheus' format; docs/metrics.md describes them."""
    values = await gauge_values(context)
    found = scrape.Scrape(context.meters, values)
    # In a thread: it takes a millisecond or more.
    accept = request.headers.get("accept", "")
    body, media_type = await asyncio.to_thread(scrape.text, found, accept)
    return Response(body, headers={"content-type": media_type, "cache-control": "no-store"})


def _is_here(request: Request) -> bool:
    """Whether a request comes from a local program, not through a proxy or from a web page."""
    if request.client is None or any(name in request.headers for name in _PASSED_ON):
        return False
    if urlsplit(f"//{request.headers.get('host', '')}").hostname not in _HERE:
        return False  # a proxy without such headers still passes on its own host name
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False
