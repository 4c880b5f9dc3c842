"""Downloads of models and uploads of updates; both resume at the byte where they stopped."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any, Protocol

import grpc

from fedloom.client.budgets.pace import Pace
from fedloom.client.network.off_loop import off_loop
from fedloom.client.state.partial_download import PartialDownload
from fedloom.client.state.store import ClientStore
from fedloom.protocol import positional_files
from fedloom.protocol.crash_points import crossing
from fedloom.protocol.errors import (
    Code,
    FedloomError,
    IntegrityError,
    Reaction,
    Refusal,
    UnavailableError,
)
from fedloom.protocol.transport import methods
from fedloom.protocol.transport.chunk_size import Chunks
from fedloom.protocol.v1 import fleet_pb2

Metadata = tuple[tuple[str, str], ...]


class ModelSink(Protocol):
    """Where downloaded models are stored."""

    def receive_model(self, digest: str, size_bytes: int) -> PartialDownload:
        """Start or resume a download."""

    def adopt_model(self, digest: str) -> Path:
        """Store a complete and verified download."""


async def download(
    channel: grpc.aio.Channel,
    model: fleet_pb2.ModelRef,
    store: ModelSink,
    server: str,
    metadata: Metadata = (),
    *,
    pace: Pace | None = None,
) -> None:
    """Download a model into the store, resuming an earlier attempt.

    Raises:
        Refusal: the server refuses it.
        UnavailableError: the connection was lost; try again.
        IntegrityError: the received bytes do not match the size or the digest.
    """
    pace = pace or Pace()
    part = store.receive_model(model.digest, model.size_bytes)
    try:
        digest = await off_loop(part.received, part.hash)
        call: Any = channel.unary_stream(
            methods.DOWNLOAD, request_serializer=fleet_pb2.DownloadRequest.SerializeToString
        )(fleet_pb2.DownloadRequest(digest=model.digest, offset=part.received), metadata=metadata)
        try:
            async for chunk in call:
                if not chunk:
                    call.cancel()
                    raise IntegrityError(f"Expected bytes of a model, got no bytes from {server}.")
                if part.received + len(chunk) > model.size_bytes:
                    call.cancel()
                    raise IntegrityError(
                        f"Expected a model of {model.size_bytes} bytes, got more from {server}."
                    )
                part.append(chunk)
                digest.update(chunk)
                crossing("client.download.chunk")
                await pace.passed(len(chunk))
        except grpc.aio.AioRpcError as error:
            raise methods.error_from_rpc(error, server) from error
    finally:
        part.close()
    if not part.is_whole:
        raise IntegrityError(
            f"Expected {model.size_bytes} bytes of a model, got {part.received} from {server}."
        )
    if digest.hexdigest() != model.digest:
        part.path.unlink()
        raise IntegrityError(
            f"Expected the model {model.digest[:12]}, got other bytes: downloading it again."
        )
    crossing("client.download.whole")
    store.adopt_model(model.digest)


async def upload(
    channel: grpc.aio.Channel,
    header: fleet_pb2.UpdateHeader,
    store: ClientStore,
    server: str,
    metadata: Metadata = (),
    *,
    body: Path | None = None,
    chunks: Chunks | None = None,
    pace: Pace | None = None,
) -> bool:
    """Send an update; returns whether it had been accepted before.

    Args:
        channel: to the server.
        header: of the update.
        store: of its body.
        server: host:port, for errors.
        metadata: of the call.
        body: file of the body; None for the one in the store.
        chunks: sizes of the messages.
        pace: limit of the rate.

    Raises:
        Refusal: the server rejected it.
        UnavailableError: the connection was lost; try again.
    """
    call: Any = channel.stream_stream(methods.UPLOAD)(metadata=metadata)
    try:
        await call.write(header.SerializeToString())
        reply = await _reply(call, server)
        if reply.WhichOneof("kind") == "proceed":
            path = body or store.body_path(header.task.run, header.task.round)
            handle = os.open(path, os.O_RDONLY | positional_files.BINARY)
            try:
                offset = reply.proceed.offset
                if offset > header.size_bytes:
                    raise Refusal(
                        Code.MALFORMED,
                        f"Expected to resume within {header.size_bytes} bytes, got byte {offset}.",
                    )
                await _send_body(call, handle, offset, chunks or Chunks(), pace or Pace())
            finally:
                os.close(handle)
            await call.done_writing()
            crossing("client.upload.sent")
            reply = await _reply(call, server)
        else:
            await call.done_writing()
        crossing("client.upload.accepted")
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
        raise await failure(call, server) from error
    finally:
        call.cancel()
    return reply.accepted.repeated


async def _send_body(call: Any, body: int, offset: int, chunks: Chunks, pace: Pace) -> None:
    while chunk := positional_files.read_at(body, pace.most(chunks.size), offset):
        begun = time.monotonic()
        await call.write(chunk)
        chunks.passed(len(chunk), time.monotonic() - begun)
        offset += len(chunk)
        crossing("client.upload.chunk")
        await pace.passed(len(chunk))


async def _reply(call: Any, server: str) -> fleet_pb2.UploadReply:
    raw = await call.read()
    if raw is grpc.aio.EOF:
        raise await failure(call, server)
    return methods.parse(fleet_pb2.UploadReply, raw)


async def failure(call: Any, server: str) -> FedloomError:
    """Why a call ended early."""
    code = await call.code()
    if code is grpc.StatusCode.OK:
        return UnavailableError(f"Expected a reply from {server}, got the end of the call.")
    error = grpc.aio.AioRpcError(
        code,
        await call.initial_metadata(),
        await call.trailing_metadata(),
        details=await call.details(),
    )
    return methods.error_from_rpc(error, server)


def may_retry(error: FedloomError) -> bool:
    """Whether a retry may succeed."""
    if isinstance(error, Refusal):
        return error.code.reaction is Reaction.RESEND
    return isinstance(error, UnavailableError | IntegrityError)
