"""The promoted model on a device: asked for, checked, downloaded once, kept for when it is offline.

What is kept lies apart from the agent's models, so that both may be at work at once:

    promoted/<scope>.json               what the server said last, of a run or of all
    promoted/<digest>.safetensors       models, whole

Invariants: a model under its digest has it; what the server says is believed where its key signed
it for this federation and question, and where it is not older than what was said before.
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
"""Models that stay when another one comes."""
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """Which model is the one to use.

    Attributes:
        promotion: rises with every promotion of this server.
        promoted_us: when, by the server's clock; microseconds since the epoch.
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
        """Is this an older statement? By both clocks that servers have: one may be set back."""
        mine, theirs = (self.promotion, self.promoted_us), (other.promotion, other.promoted_us)
        return mine != theirs and mine[0] <= theirs[0] and mine[1] <= theirs[1]


class PromotedModels:
    """The promoted models that are here.

    Args:
        state_dir: of the client.
    """

    def __init__(self, state_dir: Path) -> None:
        self._folder = private_directory(state_dir / FOLDER)

    def path(self, digest: str) -> Path:
        """Where a whole model lies."""
        return self._folder / f"{digest}.safetensors"

    def last(self, scope: str) -> Promotion | None:
        """What was said last, of a run or (empty) of all."""
        try:
            return Promotion(**json.loads(self._note(scope).read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise IntegrityError(
                f"Expected the last promotion in {self._note(scope)}, got something else. Remove "
                "the file to ask the server anew."
            ) from None

    def note(self, scope: str, promotion: Promotion) -> None:
        """Keep what was said, durably."""
        write_whole(self._note(scope), json.dumps(asdict(promotion)), sync=True)

    def _note(self, scope: str) -> Path:
        name = hashlib.sha256(scope.encode()).hexdigest()[:16] if scope else "latest"
        return self._folder / f"{name}.json"

    def has(self, digest: str) -> bool:
        """Is this model here, whole?"""
        path = self.path(digest)
        if not path.exists():
            return False
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == digest:
                return True
        path.unlink()
        return False

    # ---- as `transfer.download` wants it -------------------------------------------------

    def receive_model(self, digest: str, size_bytes: int) -> PartialDownload:
        """Begin, or go on with, receiving a model."""
        return PartialDownload(self._folder / f"{digest}.part", size_bytes)

    def adopt_model(self, digest: str) -> Path:
        """The part is whole and verified; the oldest models make room."""
        path = self.path(digest)
        (self._folder / f"{digest}.part").replace(path)
        by_age = sorted(self._folder.glob("*.safetensors"), key=lambda p: p.stat().st_mtime_ns)
        for old in by_age[:-KEEP]:
            old.unlink()
        for part in self._folder.glob("*.part"):
            part.unlink()
        return path


async def fetch(config: ClientConfig, scope: str) -> Promotion:
    """Ask which model is promoted, and download it unless it is here.

    Raises:
        UnavailableError: the server cannot be reached.
        Refusal: it does not have this client, or what it said is not signed.
        IntegrityError: it said something older than before.
        UsageError: nothing was promoted.
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
                "The model that is here stays; ask the operator to promote once more."
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
                f"Expected a server that promotes models, got an older one at {connection.server}: "
                "upgrade the server."
            ) from None
        raise methods.error_from_rpc(error, connection.server) from error
    if not reply.statement:
        of = f" of {scope!r}" if scope else ""
        raise UsageError(
            f"Expected a promoted model{of}, got none: the operator promotes one by "
            "`fedloom model promote`."
        )
    return _believed(reply, connection, scope)


def _believed(reply: fleet_pb2.PromotedReply, connection: Connection, scope: str) -> Promotion:
    """What a reply says, if it may be believed.

    Raises:
        Refusal: it is not signed, or not for this federation and question.
    """
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
