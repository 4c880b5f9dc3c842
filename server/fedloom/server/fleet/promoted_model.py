"""The signed statement of the promoted model."""

from fedloom.protocol.trust.signing import PROMOTED
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.fleet.context import FleetContext

MICROSECONDS = 1_000_000


async def promoted(server: FleetContext, asked: str) -> fleet_pb2.PromotedReply:
    """The latest promotion, signed, of a run by id or name; of any if empty."""
    ledger = server.ledger
    if asked:
        row = await server.in_ledger(ledger.promoted_of, asked)
    else:
        row = await server.in_ledger(ledger.promoted)
    if row is None:
        return fleet_pb2.PromotedReply()
    model = await server.in_ledger(ledger.model, row.digest, row.run)
    statement = fleet_pb2.PromotedStatement(
        federation=server.config.federation,
        asked=asked,
        promotion=row.id,
        promoted_us=round(row.at * MICROSECONDS),
        run=row.run,
        round=row.round,
        model=fleet_pb2.ModelRef(digest=row.digest, size_bytes=model.size_bytes),
    ).SerializeToString(deterministic=True)
    reply = fleet_pb2.PromotedReply(statement=statement)
    if server.signing is not None:
        reply.signature.CopyFrom(server.signing.signer.signature(PROMOTED, statement))
    return reply
