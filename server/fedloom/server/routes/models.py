"""Routes of models: upload, download and promotion, with bounded memory."""

import logging
from pathlib import Path
from typing import Annotated, BinaryIO, ClassVar

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from fedloom.protocol.errors import IntegrityError, UnavailableError, UsageError
from fedloom.server.access.scopes import Operator, Viewer
from fedloom.server.access.studies import studies
from fedloom.server.actions.consequences import evaluation_words
from fedloom.server.http.dependencies import FAULTS, Context, Preview
from fedloom.server.http.head_requests import HEAD_ONLY
from fedloom.server.ledger.rows import values
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.errors import ConflictError
from fedloom.server.queries.runs import best_rounds
from fedloom.server.queries.views import (
    MAX_NUMBER,
    ErrorReply,
    ModelList,
    ModelView,
    Promote,
    Promoted,
    PromotionList,
    PromotionView,
    StoredModel,
)

log = logging.getLogger(__name__)

BLOCK_BYTES = 4 << 20
MEDIA_TYPE = "application/octet-stream"

_BODY = {"content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}

router = APIRouter(tags=["models"], responses=FAULTS)


class TooLargeError(UsageError):
    """A body is larger than `max_model_bytes`."""


class BadModelError(IntegrityError):
    """A body is not a model."""


class _BlockResponse(FileResponse):
    """A file in blocks so large that the cost of switching threads is negligible."""

    chunk_size: ClassVar[int] = 1 << 20  # type: ignore[misc]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file; for HEAD it is not read."""
        method = "HEAD" if HEAD_ONLY in scope else scope["method"]
        await super().__call__({**scope, "method": method}, receive, send)


@router.put(
    "/models",
    status_code=201,
    openapi_extra={"requestBody": {**_BODY, "required": True}},
    responses={413: {"model": ErrorReply, "description": "Over max_model_bytes."}},
)
async def add_model(context: Context, principal: Operator, request: Request) -> StoredModel:
    """Store a safetensors file; storing it again changes nothing."""
    models, in_disk = context.models, context.in_disk
    limit = context.config.max_model_bytes
    declared = request.headers.get("content-length", "0")
    if declared.isdigit():
        _check_size(int(declared), limit)
    temporary = models.temporary()
    try:
        await _receive(request, temporary, context, limit)
        digest = await in_disk(models.checked, temporary)
        limit_of = principal.studies  # it may start a run from the model, but no namesake of it
        detail = {} if limit_of is None else {"studies": sorted(limit_of)}
        await context.audit(principal, "model.add", digest, detail)
        await in_disk(models.adopt, temporary, digest)
        manifest = await in_disk(models.manifest, digest)
    except IntegrityError as error:
        raise BadModelError(str(error).replace(str(temporary), "the body")) from error
    except UsageError as error:
        raise type(error)(str(error).replace(str(temporary), "the body")) from error
    except OSError as error:
        raise UnavailableError(f"The model could not be stored: {error}.") from error
    finally:
        temporary.unlink(missing_ok=True)
    context.live.changed("models")
    log.info("stored model %s, %d bytes", digest[:12], manifest.size_bytes)
    return StoredModel(
        digest=digest,
        size_bytes=manifest.size_bytes,
        num_tensors=len(manifest.specs),
        num_values=sum(spec.size for spec in manifest.specs.values()),
    )


async def _receive(request: Request, path: Path, context: ConsoleContext, limit: int) -> None:
    """Write a body to a file in blocks, off the event loop."""
    block = bytearray()
    size = 0
    with path.open("wb", buffering=0) as file:
        try:
            async for chunk in request.stream():
                block += chunk
                if len(block) >= BLOCK_BYTES:
                    size = await _flush(context, file, block, size, limit)
        except ClientDisconnect as error:
            raise UnavailableError("The upload was interrupted.") from error
        await _flush(context, file, block, size, limit)


async def _flush(
    context: ConsoleContext, file: BinaryIO, block: bytearray, size: int, limit: int
) -> int:
    size += len(block)
    _check_size(size, limit)
    await context.in_disk(_write_all, file, bytes(block))
    block.clear()
    return size


def _write_all(file: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise TooLargeError(
            f"Expected a model of at most {limit} bytes, got {size} or more: "
            "raise max_model_bytes in server.toml."
        )


@router.get("/models")
async def list_models(
    context: Context,
    _: Viewer,
    run: Annotated[str, Query(description="a run's id or a unique prefix")] = "",
    before: Annotated[
        str, Query(max_length=120, pattern=r"^(.+/\d{1,15})?$", description="`more` of a page")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> ModelList:
    """The latest initial and committed models of one or all runs, oldest first."""
    ledger = context.ledger
    if studies() is not None and not run:
        raise UsageError("Expected `run`, as you see models of your studies' runs: name one.")
    run = await context.run_id(run) if run else ""
    after = None
    if before:
        name, number = before.rsplit("/", 1)
        after = name, int(number)
    rows = await context.in_reader(ledger.list_models, run, before=after, limit=limit)
    more = f"{rows[0].run}/{rows[0].round}" if len(rows) == limit else None
    rows = await context.with_kept(rows)
    best = best_rounds(await context.in_reader(ledger.list_runs))
    found = [
        ModelView.model_validate({**values(row), "best": (row.run, row.round) in best})
        for row in rows
    ]
    return ModelList(models=found, more=more)


@router.get(
    "/models/{digest}",
    response_class=_BlockResponse,
    responses={200: {"content": _BODY["content"], "description": "A safetensors file."}},
)
async def get_model(context: Context, _: Viewer, digest: str) -> FileResponse:
    """A model's file. The ETag is its digest, so that the receiver can verify it."""
    digest = await context.digest(digest)
    path = await context.in_disk(context.models.local, digest)
    return _BlockResponse(
        path, media_type=MEDIA_TYPE, filename=path.name, headers={"etag": f'"{digest}"'}
    )


@router.post("/models/{digest}/promote")
async def promote(
    context: Context, principal: Operator, digest: str, wish: Promote, preview: Preview = False
) -> Promoted:
    """Make a model the promoted one, which devices use; repeating this changes nothing."""
    ledger = context.ledger
    digest = await context.digest(digest)
    if not preview:
        await context.hold(digest)
    run = await context.run_id(wish.run) if wish.run else ""
    try:
        model = await context.in_ledger(ledger.model, digest, run)
        last = await context.in_ledger(ledger.promoted)
    except UsageError as error:
        raise ConflictError(str(error)) from error
    before = "" if last is None else f" instead of {last.digest[:12]} of {last.run}"
    words = (
        f"The model {digest[:12]} of round {model.round} of {model.run} becomes the one that "
        f"clients use{before}. Runs do not change."
    )
    if last is not None and (last.run, last.digest) == (model.run, digest):
        words = f"The model {digest[:12]} of {model.run} is already promoted: nothing changes."
    found = await context.in_ledger(ledger.evaluations, [digest])
    words += evaluation_words(found[digest][-1].evaluation if found[digest] else {})
    if preview:
        return Promoted(promotion=None, changed=False, consequence=words)
    detail = {"run": model.run, "round": model.round, "note": wish.note}
    await context.audit(principal, "model.promote", digest, detail)
    row, new = await context.in_ledger(ledger.promote, digest, model.run, wish.note)
    context.live.changed("models")
    if new:
        log.info("model %s of %s promoted", digest[:12], model.run)
    return Promoted(
        promotion=PromotionView.model_validate(values(row)), changed=new, consequence=words
    )


@router.get("/promotions")
async def list_promotions(
    context: Context,
    _: Viewer,
    run: Annotated[str, Query(description="a run's id or a unique prefix")] = "",
    before: Annotated[
        int, Query(ge=0, le=MAX_NUMBER, description="last id of the page before")
    ] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> PromotionList:
    """Promotions, newest first, of one run or of all."""
    run = await context.run_id(run) if run else ""
    ledger = context.ledger
    rows = await context.in_ledger(ledger.list_promotions, run, before=before, limit=limit)
    more = rows[-1].id if len(rows) == limit else None
    return PromotionList(
        promotions=[PromotionView.model_validate(values(row)) for row in rows], more=more
    )
