"""Routes about what models are: where they come from, what is in them, how they compare."""

import asyncio
import json
import math
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from fedloom.protocol.errors import UsageError
from fedloom.protocol.trust.signing import MODEL, fingerprint
from fedloom.server.access.scopes import Viewer
from fedloom.server.queries.parts import FAULTS, ConflictError, Here, Parts
from fedloom.server.storage.model_norms import Layers as MeasuredLayers
from fedloom.server.storage.model_norms import layers

router = APIRouter(tags=["models"], responses=FAULTS)


class Contributor(BaseModel):
    """A client whose update is in a model."""

    client: str
    weight: float
    staleness: int | None
    round: Annotated[int, Field(description="that it was asked in")]


class Origin(BaseModel):
    """A round that committed a model, or a run that began with it."""

    run: str
    round: Annotated[int, Field(description="0: the run began with it")]
    created_at: float
    model_in: Annotated[str | None, Field(description="the model before it; null at round 0")]
    undone_at: float | None
    privacy: dict[str, float] | None
    contributors: list[Contributor]


class Evaluation(BaseModel):
    """What clients measured of a model in a round that began with it."""

    run: str
    round: int
    num_examples: float | None
    values: dict[str, Any]


class ModelDetail(BaseModel):
    """A model: where it comes from, who is in it, and what it was measured to be."""

    digest: str
    size_bytes: int
    stored: Annotated[bool, Field(description="false: its file was pruned")]
    origins: list[Origin]
    evaluations: list[Evaluation]
    promoted_at: Annotated[list[float], Field(description="newest first")]


class LayerView(BaseModel):
    """A tensor of a model, in numbers."""

    name: str
    shape: list[int]
    norm: Annotated[float, Field(description="Euclidean")]
    max_abs: float
    difference: Annotated[
        float | None, Field(description="norm of what lies between it and the base's")
    ] = None
    relative: Annotated[float | None, Field(description="that, over its own norm")] = None


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


class Signature(BaseModel):
    """The federation's word for a model's file."""

    statement: Annotated[str, Field(description="JSON text: digest, size, federation, origin")]
    signature: Annotated[
        str,
        Field(
            description='hex; Ed25519 over "fedloom-signature-1", 0, "model", 0 and the statement'
        ),
    ]
    key: Annotated[str, Field(description="public key, hex")]
    fingerprint: str
    message: Annotated[
        str, Field(description="hex; fedloom.v1.Signature, with the chain that leads to the key")
    ]


@router.get("/models/{digest}/lineage")
async def lineage(here: Here, _: Viewer, digest: str) -> ModelDetail:
    """Where a model comes from: runs, rounds, clients, and what was measured of it."""
    return await _detail(here, await here.known_digest(digest))


async def _detail(here: Here, digest: str) -> ModelDetail:
    world, ledger = here.world, here.world.ledger
    origins, size = [], await world.in_disk(world.models.size, digest)
    rows = await world.in_reader(ledger.origins, digest)
    for row in rows:
        part = await world.in_reader(ledger.contributors, row["run"], row["round"])
        origins.append(Origin.model_validate({**row, "contributors": part}))
    found = await world.in_reader(ledger.evaluations, [digest])
    promoted = await world.in_reader(ledger.promotions_of, digest)
    return ModelDetail(
        digest=digest,
        size_bytes=rows[-1]["size_bytes"] if size is None else size,
        stored=size is not None,
        origins=origins,
        evaluations=[
            Evaluation(
                run=row["run"],
                round=row["number"],
                num_examples=row["evaluation"].get("num_examples"),
                values=row["evaluation"].get("values", {}),
            )
            for row in found[digest]
        ],
        promoted_at=[row["at"] for row in promoted],
    )


@router.get("/models/{digest}/layers")
async def list_layers(
    here: Here,
    _: Viewer,
    digest: str,
    base: Annotated[str, Query(max_length=64, description="a model to compare it with")] = "",
) -> Layers:
    """Norms of a model's tensors, and of what lies between it and another."""
    digest = await here.digest(digest)
    other = await here.digest(base) if base else ""
    return layers_of(digest, other, await asyncio.shield(measured(here, digest, other)))


def measured(here: Parts, digest: str, base: str) -> "asyncio.Future[MeasuredLayers]":
    """The tensors of a stored model, beside those of another or of none (""); pages hear of it."""
    world, path = here.world, here.world.models.path

    async def measure() -> MeasuredLayers:
        found = await world.in_disk(layers, path(digest), path(base) if base else None)
        world.live.changed("models", digest)
        return found

    return here.inspector.begin((digest, base), measure)


def layers_of(digest: str, base: str, found: MeasuredLayers) -> Layers:
    """What `list_layers` answers."""
    gaps = [layer.difference for layer in found if layer.difference is not None]
    return Layers(
        digest=digest,
        base=base or None,
        norm=_joint([layer.norm for layer in found]),
        difference=_joint(gaps) if base else None,
        layers=[
            LayerView(
                name=layer.name, shape=list(layer.shape), norm=layer.norm, max_abs=layer.max_abs,
                difference=layer.difference, relative=layer.relative,
            )
            for layer in found
        ],
    )  # fmt: skip


def _joint(norms: list[float]) -> float:
    return math.hypot(*norms)


@router.get("/model-comparison")
async def compare(
    here: Here, _: Viewer, of: Annotated[list[str], Query(min_length=1, max_length=10)]
) -> Comparison:
    """Models side by side: where they come from, and what was measured of each."""
    digests = [await here.known_digest(each) for each in of]
    return Comparison(models=[await _detail(here, digest) for digest in digests])


@router.get("/models/{digest}/signature")
async def signature(here: Here, _: Viewer, digest: str) -> Signature:
    """The federation's signature over what a model's file is: keep it beside the file."""
    signing = here.world.signing
    if signing is None:
        raise ConflictError("Expected a federation with a signing key, got one on plaintext.")
    detail = await _detail(here, await here.digest(digest))
    if not detail.origins:
        raise UsageError("Expected a model of a run, got one that no run began with or made.")
    last = detail.origins[-1]
    statement = json.dumps(
        {
            "digest": detail.digest,
            "federation": here.world.config.federation,
            "round": last.round,
            "run": last.run,
            "size_bytes": detail.size_bytes,
        },
        sort_keys=True,
    )
    signed = signing.signer.signature(MODEL, statement.encode())
    return Signature(
        statement=statement,
        signature=signed.signature.hex(),
        key=signed.key.hex(),
        fingerprint=fingerprint(signed.key),
        message=signed.SerializeToString(deterministic=True).hex(),
    )
