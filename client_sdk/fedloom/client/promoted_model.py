"""The promoted model on a device: requested, verified, downloaded once, and kept for offline use.

Its files are separate from the agent's models, so that both may run at the same time:

    promoted/<scope>.json               the last promotion of a run, or of all runs
    promoted/<digest>.safetensors       complete models

Invariants: a model file has the digest in its name; a promotion is accepted only if the server
signed it for this federation and request, and if it is not older than the stored one.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc

from fedloom.client.budgets import Pace
from fedloom.client.config import ClientConfig
from fedloom.client.network import transfer
from fedloom.client.network.connection import CONNECT_S, Connection
from fedloom.client.offers.checks import is_run
from fedloom.client.state.model_check import check_room
from fedloom.client.state.partial_download import PartialDownload
from fedloom.client.state.store import ClientStore
from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import Code, IntegrityError, Refusal, UsageError
from fedloom.protocol.transport import methods
from fedloom.protocol.trust.private_files import private_directory
from fedloom.protocol.trust.signing import PROMOTED
from fedloom.protocol.v1 import fleet_pb2

FOLDER = "promoted"
KEEP = 4
"""Models that are kept when another one arrives."""
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """A promotion: which model devices are to use.

    Attributes:
        promotion: number that increases with every promotion of this server.
        promoted_us: time by the server's clock; microseconds since the epoch.
        run: that made the model.
        round: of that run.
        digest: SHA-256 of the model's bytes, hex.
        size_bytes: of the model.
    """

    promotion: int
    promoted_us: int
    run: str
    round: int
    digest: str
    size_bytes: int

    def is_before(self, other: "Promotion") -> bool:
        """Whether this is older by number and by time; a server may set one of them back."""
        mine, theirs = (self.promotion, self.promoted_us), (other.promotion, other.promoted_us)
        return mine != theirs and mine[0] <= theirs[0] and mine[1] <= theirs[1]


class PromotedModels:
    """The promoted models stored on this device."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = private_directory(state_dir / FOLDER)

    def path(self, digest: str) -> Path:
        """File of a complete model."""
        return self._folder / f"{digest}.safetensors"

    def last(self, scope: str) -> Promotion | None:
        """The stored promotion of a run, or (empty) of all runs; None if there is none.

        Raises:
            IntegrityError: its file is damaged.
        """
        try:
            return Promotion(**json.loads(self._note(scope).read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise IntegrityError(
                f"The file {self._note(scope)} is damaged. Remove it to ask the server again."
            ) from None

    def note(self, scope: str, promotion: Promotion) -> None:
        """Store a promotion durably."""
        write_whole(self._note(scope), json.dumps(asdict(promotion)), sync=True)

    def _note(self, scope: str) -> Path:
        name = hashlib.sha256(scope.encode()).hexdigest()[:16] if scope else "latest"
        return self._folder / f"{name}.json"

    def has(self, digest: str) -> bool:
        """Whether this model is stored and intact; a damaged file is removed."""
        path = self.path(digest)
        if not path.exists():
            return False
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == digest:
                return True
        path.unlink()
        return False

    # ---- for `transfer.download` ---------------------------------------------------------

    def receive_model(self, digest: str, size_bytes: int) -> PartialDownload:
        """Start or resume a download; `adopt_model` completes it."""
        return PartialDownload(self._folder / f"{digest}.part", size_bytes)

    def adopt_model(self, digest: str) -> Path:
        """Turn a complete, verified download into a model; remove the oldest ones."""
        path = self.path(digest)
        (self._folder / f"{digest}.part").replace(path)
        by_age = sorted(self._folder.glob("*.safetensors"), key=lambda p: p.stat().st_mtime_ns)
        for old in by_age[:-KEEP]:
            old.unlink()
        for part in self._folder.glob("*.part"):
            part.unlink()
        return path


async def fetch(config: ClientConfig, scope: str) -> Promotion:
    """Ask the server which model is promoted, and download it unless it is stored.

    Raises:
        UnavailableError: the server cannot be reached.
        Refusal: it refuses this client, or its statement is not signed.
        IntegrityError: its statement is older than the stored one.
        UsageError: no model was promoted.
    """
    shelf = PromotedModels(config.state_dir)
    connection = Connection(config, ClientStore(config.state_dir))
    async with connection.open_channel() as channel:
        promotion = await _ask(channel, connection, scope)
        seen = shelf.last(scope)
        if seen is not None and promotion.is_before(seen):
            raise IntegrityError(
                f"Expected promotion {seen.promotion} or a later one, got {promotion.promotion}: "
                "an old statement is being replayed, or the server was restored from a backup. "
                "The stored model is kept; ask the operator to promote again."
            )
        if not shelf.has(promotion.digest):
            model = fleet_pb2.ModelRef(digest=promotion.digest, size_bytes=promotion.size_bytes)
            check_room(config.state_dir, promotion.size_bytes)
            await transfer.download(
                channel, model, shelf, connection.server, connection.metadata,
                pace=Pace(config.budgets.download_mbit_s),
            )  # fmt: skip
        shelf.note(scope, promotion)
    return promotion


async def _ask(channel: grpc.aio.Channel, connection: Connection, scope: str) -> Promotion:
    call = channel.unary_unary(
        methods.PROMOTED,
        request_serializer=fleet_pb2.PromotedRequest.SerializeToString,
        response_deserializer=fleet_pb2.PromotedReply.FromString,
    )
    try:
        reply = await call(
            fleet_pb2.PromotedRequest(run=scope), timeout=CONNECT_S, metadata=connection.metadata
        )
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise UsageError(
                f"The server at {connection.server} is too old to promote models: upgrade it."
            ) from None
        raise methods.error_from_rpc(error, connection.server) from error
    if not reply.statement:
        of = f" of {scope!r}" if scope else ""
        raise UsageError(
            f"No model{of} is promoted. The operator promotes one with `fedloom model promote`."
        )
    return _believed(reply, connection, scope)


def _believed(reply: fleet_pb2.PromotedReply, connection: Connection, scope: str) -> Promotion:
    """The promotion in a reply: signed, for this federation and request, and well-formed."""
    if connection.trust is not None:
        connection.trust.check(PROMOTED, reply.statement, reply.signature)
    statement = methods.parse(fleet_pb2.PromotedStatement, reply.statement)
    federation = connection.trust.federation if connection.trust else statement.federation
    if (statement.federation, statement.asked) != (federation, scope):
        raise Refusal(
            Code.WRONG_IDENTITY,
            f"Expected a statement of {federation!r} about {scope or 'the latest'!r}, got one of "
            f"{statement.federation[:80]!r} about {statement.asked[:80] or 'the latest'!r}.",
        )
    digest = statement.model.digest
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise Refusal(Code.MALFORMED, f"Expected a SHA-256 in hex, got {digest[:80]!r}.")
    if statement.run and not is_run(statement.run):
        raise Refusal(Code.MALFORMED, f"Expected a run's id, got {statement.run[:80]!r}.")
    return Promotion(
        promotion=statement.promotion,
        promoted_us=statement.promoted_us,
        run=statement.run,
        round=statement.round,
        digest=digest,
        size_bytes=statement.model.size_bytes,
    )
