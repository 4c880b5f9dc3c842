"""Pages of models: initial, committed and promoted ones, and one model's lineage and tensors."""

import asyncio
from collections.abc import Container, Mapping
from functools import partial
from math import prod
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from fedloom.server.access.scopes import Viewer
from fedloom.server.access.studies import studies
from fedloom.server.http.dependencies import Context
from fedloom.server.http.shared_answers import LivePart
from fedloom.server.ledger.lists.lists import ListedModel
from fedloom.server.ledger.rows import PromotionRow
from fedloom.server.queries.errors import NotFoundError
from fedloom.server.queries.lineage import Layers, ModelDetail, layers_of, lineage, measured
from fedloom.server.queries.runs import best_rounds
from fedloom.server.web.lists import Answer, ListColumn, listing, metric_columns, metric_names, utc
from fedloom.server.web.render import page

router = APIRouter(include_in_schema=False, route_class=LivePart)


COLUMNS = (
    ListColumn("model", "Model", lambda m: m.digest),
    ListColumn("run", "Run", lambda m: m.run),
    ListColumn("round", "Round", lambda m: m.round, num=True, first=True),
)
LATER = (
    ListColumn("size", "Size", lambda m: m.size_bytes, num=True, first=True),
    ListColumn("created", "Created", lambda m: utc(m.created_at), first=True),
)
PROMOTIONS = (
    ListColumn("at", "When", lambda p: utc(p.at), first=True),
    ListColumn("model", "Model", lambda p: p.digest),
    ListColumn("run", "Run", lambda p: p.run),
    ListColumn("round", "Round", lambda p: p.round, num=True, first=True),
    ListColumn("note", "Note", lambda p: p.note),
)
PROMOTIONS_SHOWN = 10
LAYERS_SHOWN = 500
MEASURE_WAIT_S = 0.1
"""Seconds a page waits for its model's norms; later ones arrive as a live refresh."""


@router.get("/models", response_model=None)
async def models(request: Request, context: Context, who: Viewer) -> Answer:
    """Models that match the filter, newest first unless sorted, and promotions."""
    ledger = context.ledger
    asked = listing(request, "run", key="created", descending=True, own="newest first")
    if run := asked.filters["run"]:
        asked.filters["run"] = run = await context.run_id(run)
    runs = await context.runs_seen()
    only = None if studies() is None else [row.id for row in runs]
    rows = await context.in_reader(ledger.listed_models, asked.cut(), run=run, runs=only)
    rows = await context.with_kept(rows)
    names = metric_names(asked, rows, metrics_of)
    best = best_rounds(runs)
    state = ListColumn("state", "State", lambda m: _state_of(m, best))
    asked.fill(rows, (*COLUMNS, *metric_columns(names, metrics_of), *LATER, state))
    if asked.as_csv:
        return await asked.csv(f"models-{run}" if run else "models")
    promotions = listing(
        request, prefix="promotions", key="at", descending=True, own="newest first",
        limit=PROMOTIONS_SHOWN,
    )  # fmt: skip
    newest = await _promotions(context)
    if newest:
        read = partial(ledger.listed_promotions, promotions.cut())
        await promotions.read(context.in_reader, read, PROMOTIONS)
    else:
        promotions.fill([], PROMOTIONS)
    if promotions.as_csv:
        return await promotions.csv("promotions")
    num_all = await context.in_reader(ledger.num_models, runs=only)
    return page(
        request, context, who, "models", page="models",
        list=asked, num_all=num_all, promotions=promotions, newest=newest, best=best,
        runs=[row.id for row in reversed(runs)],
    )  # fmt: skip


def _state_of(row: ListedModel, best: Container[tuple[str, int]]) -> str:
    """What a model is, besides being committed by a round."""
    states = {
        "promoted": row.promoted,
        "best": (row.run, row.round) in best,
        "pruned": row.pruned is not None,
        "initial": not row.round,
    }
    return ", ".join(name for name, holds in states.items() if holds)


def metrics_of(row: ListedModel) -> dict[str, Any]:
    """A model's metrics, by clients that evaluated it in a later round."""
    return dict((row.evaluation or {}).get("values") or {})


def _tensor_columns(dtypes: Mapping[str, str], *, compared: bool) -> list[ListColumn]:
    """Columns of a model's tensors; differences if it is compared with another model."""
    found = [
        ListColumn("name", "Name", lambda t: t.name),
        ListColumn("dtype", "Type", lambda t: dtypes.get(t.name, "")),
        ListColumn("shape", "Shape", lambda t: "×".join(map(str, t.shape))),
        ListColumn("values", "Values", lambda t: prod(t.shape), num=True, first=True, shown=False),
        ListColumn("norm", "Norm", lambda t: t.norm, num=True, first=True),
        ListColumn("max_abs", "Largest", lambda t: t.max_abs, num=True, first=True),
    ]
    if compared:
        found += [
            ListColumn("difference", "Difference", lambda t: t.difference, num=True, first=True),
            ListColumn("relative", "Relative", lambda t: t.relative, num=True, first=True),
        ]
    return found


@router.get("/models/{digest}", response_model=None)
async def model(
    request: Request,
    context: Context,
    who: Viewer,
    *,
    digest: str,
    base: Annotated[str, Query(max_length=64)] = "",
) -> Answer:
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
    other = await _base(context, base)
    tensors = listing(request, "q", prefix="tensors", key="name", own="by name", limit=LAYERS_SHOWN)
    its_base = other.digest if other else ""
    wait_s = None if tensors.as_csv else MEASURE_WAIT_S
    layers = await _layers(context, found.digest, its_base, wait_s)
    manifest = await context.in_disk(context.models.manifest, found.digest)
    part = tensors.filters["q"].lower()
    named = [each for each in layers.layers if part in each.name.lower()] if layers else []
    tensors.cut_out(named, _tensor_columns(manifest.dtypes, compared=other is not None))
    if tensors.as_csv:
        return await tensors.csv(f"tensors-{found.digest[:12]}")
    promotions = await _promotions(context)
    runs = await context.runs_seen()
    rows = await context.in_reader(ledger.list_models, origin.run if origin else "", limit=201)
    return page(
        request, context, who, "model", page="models",
        found=found, digest=found.digest, origin=origin, other=other, layers=layers,
        tensors=tensors, dtypes=manifest.dtypes,
        num_tensors=len(manifest.specs),
        largest=max((layer.norm for layer in layers.layers), default=0.0) if layers else 0.0,
        is_promoted=bool(promotions) and promotions[0].digest == found.digest,
        is_best=origin is not None and (origin.run, origin.round) in best_rounds(runs),
        others=[row for row in reversed(rows) if row.digest != found.digest][:200],
    )  # fmt: skip


async def _base(context: Context, base: str) -> ModelDetail | None:
    """The model to compare with; None if it is not stored."""
    if studies() is not None:
        known = {row.digest for row in await context.models_seen()}
        base = base if base in known else ""
    stored = await context.in_disk(context.models.find, base) if base else []
    return await lineage(context, base) if stored else None


async def _promotions(context: Context) -> list[PromotionRow]:
    """The latest promotion, if there is one; promotions are of the whole server."""
    if studies() is not None:
        return []
    return await context.in_reader(context.ledger.list_promotions, limit=1)


async def _layers(context: Context, digest: str, base: str, wait_s: float | None) -> Layers | None:
    """Norms of a model's tensors; None while they are computed, seconds for a large model."""
    measuring = measured(context, digest, base)
    await asyncio.wait([measuring], timeout=wait_s)
    return layers_of(digest, base, measuring.result()) if measuring.done() else None
