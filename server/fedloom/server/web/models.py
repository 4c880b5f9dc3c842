"""Pages about models: what runs began with and committed, and what is promoted."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from fedloom.server.routes.parts import Here
from fedloom.server.routes.scopes import Viewer
from fedloom.server.web.render import page

router = APIRouter(include_in_schema=False)

A_PAGE = 100


@router.get("/models")
async def models(request: Request, here: Here, who: Viewer, run: str = "") -> HTMLResponse:
    """Models, newest first, and what is promoted."""
    world, ledger = here.world, here.world.ledger
    run = await here.run_id(run) if run else ""
    rows = await world.in_reader(ledger.list_models, run)
    promotions = await world.in_reader(ledger.list_promotions, limit=10)
    runs = await world.in_reader(ledger.list_runs)
    return page(
        request, here, who, "models", page="models",
        rows=rows[::-1][:A_PAGE], num_all=len(rows), promotions=promotions, run=run,
        runs=[row["id"] for row in reversed(runs)],
        promoted={row["digest"] for row in promotions[:1]},
    )  # fmt: skip


@router.get("/models/{digest}")
async def model(request: Request, here: Here, who: Viewer, digest: str) -> HTMLResponse:
    """A model: where it comes from, what it holds, and what it was promoted for."""
    world, ledger = here.world, here.world.ledger
    digest = await here.digest(digest)
    manifest = await world.in_disk(world.models.manifest, digest)
    places = [r for r in await world.in_reader(ledger.list_models) if r["digest"] == digest]
    place = places[-1] if places else None
    made = None
    if place is not None and place["round"]:
        made = await world.in_reader(ledger.round, place["run"], place["round"])
    promotions = await world.in_reader(ledger.list_promotions, limit=200)
    return page(
        request, here, who, "model", page="models",
        digest=digest, origins=places, place=place, made=made, manifest=manifest,
        promotions=[row for row in promotions if row["digest"] == digest],
        is_promoted=bool(promotions) and promotions[0]["digest"] == digest,
        tensors=sorted(manifest.specs.items()),
    )  # fmt: skip
