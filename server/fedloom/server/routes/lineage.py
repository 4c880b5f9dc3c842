"""Routes of models: lineage, norms of tensors, comparison, signature."""

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

router = APIRouter(tags=["models"], responses=FAULTS)


class Signature(BaseModel):
    """The federation's signature over a model's file."""

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
async def lineage(context: Context, _: Viewer, digest: str) -> queries.ModelDetail:
    """A model's origins, contributors and evaluations."""
    return await queries.lineage(context, digest)


@router.get("/models/{digest}/layers")
async def list_layers(
    context: Context,
    _: Viewer,
    digest: str,
    base: Annotated[str, Query(max_length=64, description="a model to compare it with")] = "",
) -> queries.Layers:
    """Norms of a model's tensors, and of their differences from another model."""
    digest = await context.digest(digest)
    other = await context.digest(base) if base else ""
    return queries.layers_of(
        digest, other, await asyncio.shield(queries.measured(context, digest, other))
    )


@router.get("/model-comparison")
async def compare(
    context: Context, _: Viewer, of: Annotated[list[str], Query(min_length=1, max_length=10)]
) -> queries.Comparison:
    """Several models with their origins and evaluations."""
    digests = [await context.known_digest(each) for each in of]
    return queries.Comparison(
        models=[await queries.model_detail(context, digest) for digest in digests]
    )


@router.get("/models/{digest}/signature")
async def signature(context: Context, _: Viewer, digest: str) -> Signature:
    """The federation's signature over a model's digest and origin. Keep it with the file."""
    signing = context.signing
    if signing is None:
        raise ConflictError("A server on plaintext has no signing key.")
    detail = await queries.model_detail(context, await context.digest(digest))
    if not detail.origins:
        raise UsageError("This model belongs to no run, so it cannot be signed.")
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
