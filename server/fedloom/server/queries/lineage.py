"""Reads models: their lineage, the norms of their tensors, and their evaluations."""

import asyncio
import math
from typing import Annotated, Any

from pydantic import BaseModel, Field

from fedloom.server.access.studies import studies
from fedloom.server.ledger.rows import values
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.storage.model_norms import Layers as MeasuredLayers
from fedloom.server.storage.model_norms import layers


class Contributor(BaseModel):
    """A client whose update is in a model."""

    client: str
    weight: float
    staleness: int | None
    round: Annotated[int, Field(description="that selected it")]


class Origin(BaseModel):
    """A round that committed a model, or a run that started from it."""

    run: str
    round: Annotated[int, Field(description="0: the run started from it")]
    created_at: float
    model_in: Annotated[str | None, Field(description="the model before it; null at round 0")]
    undone_at: float | None
    privacy: dict[str, float] | None
    contributors: list[Contributor]


class Evaluation(BaseModel):
    """Clients' metrics of a model in a round that started from it."""

    run: str
    round: int
    num_examples: float | None
    values: dict[str, Any]
    quantiles: Annotated[
        dict[str, dict[str, float]], Field(description="over clients, by metric and share")
    ]
    disagree: Annotated[
        list[str], Field(description="metrics whose mean is outside the clients' quartiles")
    ]


class ModelDetail(BaseModel):
    """A model with its origins, contributors and evaluations."""

    digest: str
    size_bytes: int
    stored: Annotated[bool, Field(description="false: its file was pruned")]
    origins: list[Origin]
    evaluations: list[Evaluation]
    promoted_at: Annotated[list[float], Field(description="newest first")]


class LayerView(BaseModel):
    """Norms of a tensor of a model."""

    name: str
    shape: list[int]
    norm: Annotated[float, Field(description="Euclidean")]
    max_abs: float
    difference: Annotated[
        float | None, Field(description="norm of its difference from the base's")
    ] = None
    relative: Annotated[float | None, Field(description="difference / norm")] = None


class Layers(BaseModel):
    """A model's tensors by name."""

    digest: str
    base: str | None
    norm: Annotated[float, Field(description="of all of them")]
    difference: float | None
    layers: list[LayerView]


class Comparison(BaseModel):
    """Models side by side."""

    models: list[ModelDetail]


async def lineage(context: ConsoleContext, reference: str) -> ModelDetail:
    """The model whose digest is, or begins with, `reference`; its file may be pruned."""
    return await model_detail(context, await context.known_digest(reference))


async def model_detail(context: ConsoleContext, digest: str) -> ModelDetail:
    """A model by its full digest, as the runs that are seen have it."""
    ledger = context.ledger
    origins, size = [], await context.in_disk(context.models.size, digest)
    rows = await context.in_reader(ledger.origins, digest)
    found = (await context.in_reader(ledger.evaluations, [digest]))[digest]
    promoted = await context.in_reader(ledger.promotions_of, digest)
    if studies() is not None:  # runs of others may have the same model
        seen = {row.id for row in await context.runs_seen()}
        rows = [row for row in rows if row.run in seen]
        found = [row for row in found if row.run in seen]
        promoted = []
    for row in rows:
        part = await context.in_reader(ledger.contributors, row.run, row.round)
        origins.append(
            Origin.model_validate({**values(row), "contributors": [values(each) for each in part]})
        )
    return ModelDetail(
        digest=digest,
        size_bytes=rows[-1].size_bytes if size is None else size,
        stored=size is not None,
        origins=origins,
        evaluations=[
            Evaluation(
                run=row.run,
                round=row.number,
                num_examples=row.evaluation.get("num_examples"),
                values=row.evaluation.get("values", {}),
                quantiles=row.evaluation.get("quantiles", {}),
                disagree=row.evaluation.get("disagree", []),
            )
            for row in found
        ],
        promoted_at=[row.at for row in promoted],
    )


def measured(context: ConsoleContext, digest: str, base: str) -> "asyncio.Future[MeasuredLayers]":
    """Norms of a stored model's tensors, compared with `base` unless ""; notifies pages."""
    local, in_disk = context.models.local, context.in_disk

    async def measure() -> MeasuredLayers:
        paths = [await in_disk(local, each) for each in (digest, base) if each]
        found = await in_disk(layers, *paths)
        context.live.changed("models", digest)
        return found

    return context.inspector.begin((digest, base), measure)


def layers_of(digest: str, base: str, found: MeasuredLayers) -> Layers:
    """The API's view of a measurement."""
    gaps = [layer.difference for layer in found if layer.difference is not None]
    return Layers(
        digest=digest,
        base=base or None,
        norm=math.hypot(*(layer.norm for layer in found)),
        difference=math.hypot(*gaps) if base else None,
        layers=[
            LayerView(
                name=layer.name, shape=list(layer.shape), norm=layer.norm, max_abs=layer.max_abs,
                difference=layer.difference, relative=layer.relative,
            )
            for layer in found
        ],
    )  # fmt: skip
