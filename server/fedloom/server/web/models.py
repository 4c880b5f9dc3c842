"""Pages of models: initial, committed and promoted ones, and one model's lineage and tensors."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from fedloom.server.access.scopes import Viewer
from fedloom.server.http.dependencies import Context
from fedloom.server.http.shared_answers import LivePart
from fedloom.server.queries.errors import NotFoundError
from fedloom.server.queries.lineage import Layers, layers_of, lineage, measured
from fedloom.server.web.render import page

router = APIRouter(include_in_schema=False, route_class=LivePart)

A_PAGE = 100
LAYERS_SHOWN = 500
MEASURE_WAIT_S = 0.1
"""Seconds a page waits for its model's norms; later ones arrive as a live refresh."""


@router.get("/models")
async def models(request: Request, context: Context, who: Viewer, run: str = "") -> HTMLResponse:
    """Models and promotions, newest first."""
    ledger = context.ledger
    run = await context.run_id(run) if run else ""
    rows = await context.in_reader(ledger.list_models, run, limit=A_PAGE)
    num_all = await context.in_reader(ledger.num_models, run)
    promotions = await context.in_reader(ledger.list_promotions, limit=10)
    runs = await context.in_reader(ledger.list_runs)
    return page(
        request, context, who, "models", page="models",
        rows=rows[::-1], num_all=num_all, promotions=promotions, run=run,
        runs=[row.id for row in reversed(runs)],
        promoted={row.digest for row in promotions[:1]},
    )  # fmt: skip


@router.get("/models/{digest}")
async def model(
    request: Request,
    context: Context,
    who: Viewer,
    *,
    digest: str,
    base: Annotated[str, Query(max_length=64)] = "",
) -> HTMLResponse:
    """One model: its lineage, its tensors and their differences from another model."""
    ledger = context.ledger
    found = await lineage(context, digest)
    if not found.stored:
        raise NotFoundError(
            f"The file of the model {found.digest[:12]} was pruned. "
            f"`fedloom model lineage {found.digest[:12]}` shows its lineage."
        )
    origin = found.origins[-1] if found.origins else None
    base = base or (origin.model_in if origin else None) or ""
    stored = await context.in_disk(context.models.find, base) if base else []
    other = await lineage(context, base) if stored else None
    layers = await _layers(context, found.digest, other.digest if other else "")
    manifest = await context.in_disk(context.models.manifest, found.digest)
    promotions = await context.in_reader(ledger.list_promotions, limit=1)
    rows = await context.in_reader(ledger.list_models, origin.run if origin else "", limit=201)
    return page(
        request, context, who, "model", page="models",
        found=found, digest=found.digest, origin=origin, other=other, layers=layers,
        shown=layers.layers[:LAYERS_SHOWN] if layers else [], dtypes=manifest.dtypes,
        num_tensors=len(manifest.specs),
        largest=max((layer.norm for layer in layers.layers), default=0.0) if layers else 0.0,
        is_promoted=bool(promotions) and promotions[0].digest == found.digest,
        others=[row for row in reversed(rows) if row.digest != found.digest][:200],
    )  # fmt: skip


async def _layers(context: Context, digest: str, base: str) -> Layers | None:
    """Norms of a model's tensors; None while they are computed, seconds for a large model."""
    measuring = measured(context, digest, base)
    await asyncio.wait([measuring], timeout=MEASURE_WAIT_S)
    return layers_of(digest, base, measuring.result()) if measuring.done() else None
