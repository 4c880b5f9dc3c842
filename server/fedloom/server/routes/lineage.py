"""Routes about what models are: where they come from, what is in them, how they compare."""

import asyncio
import json
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from fedloom.protocol.errors import UsageError
from fedloom.protocol.trust.signing import MODEL, fingerprint
from fedloom.server.access.scopes import Viewer
from fedloom.server.http.dependencies import FAULTS, Context
from fedloom.server.queries import lineage as queries
from fedloom.server.queries.errors import ConflictError
from fedloom.server.queries.lineage import (
    Comparison,
    Layers,
    ModelDetail,
    layers_of,
    measured,
    model_detail,
)

router = APIRouter(tags=["models"], responses=FAULTS)


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
async def lineage(context: Context, _: Viewer, digest: str) -> ModelDetail:
    """Where a model comes from: runs, rounds, clients, and what was measured of it."""
    return await queries.lineage(context, digest)


@router.get("/models/{digest}/layers")
async def list_layers(
    context: Context,
    _: Viewer,
    digest: str,
    base: Annotated[str, Query(max_length=64, description="a model to compare it with")] = "",
) -> Layers:
    """Norms of a model's tensors, and of what lies between it and another."""
    digest = await context.digest(digest)
    other = await context.digest(base) if base else ""
    return layers_of(digest, other, await asyncio.shield(measured(context, digest, other)))


@router.get("/model-comparison")
async def compare(
    context: Context, _: Viewer, of: Annotated[list[str], Query(min_length=1, max_length=10)]
) -> Comparison:
    """Models side by side: where they come from, and what was measured of each."""
    digests = [await context.known_digest(each) for each in of]
    return Comparison(models=[await model_detail(context, digest) for digest in digests])


@router.get("/models/{digest}/signature")
async def signature(context: Context, _: Viewer, digest: str) -> Signature:
    """The federation's signature over what a model's file is: keep it beside the file."""
    signing = context.signing
    if signing is None:
        raise ConflictError("Expected a federation with a signing key, got one on plaintext.")
    detail = await model_detail(context, await context.digest(digest))
    if not detail.origins:
        raise UsageError("Expected a model of a run, got one that no run began with or made.")
    last = detail.origins[-1]
    statement = json.dumps(
        {
            "digest": detail.digest,
            "federation": context.config.federation,
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
