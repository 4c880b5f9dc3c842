"""What the server says of the model that clients are to use, under its signature."""

from fedloom.protocol.trust.signing import PROMOTED
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.context import World

MICROSECONDS = 1_000_000


async def promoted(world: World, asked: str) -> fleet_pb2.PromotedReply:
    """The latest promotion, for a client.

    Args:
        world: shared parts.
        asked: id or name of a run; empty for any.
    """
    ledger = world.ledger
    if asked:
        row = await world.in_ledger(ledger.promoted_of, asked)
    else:
        row = await world.in_ledger(ledger.promoted)
    if row is None:
        return fleet_pb2.PromotedReply()
    model = await world.in_ledger(ledger.model, row.digest, row.run)
    statement = fleet_pb2.PromotedStatement(
        federation=world.config.federation,
        asked=asked,
        promotion=row.id,
        promoted_us=round(row.at * MICROSECONDS),
        run=row.run,
        round=row.round,
        model=fleet_pb2.ModelRef(digest=row.digest, size_bytes=model.size_bytes),
    ).SerializeToString(deterministic=True)
    reply = fleet_pb2.PromotedReply(statement=statement)
    if world.signing is not None:
        reply.signature.CopyFrom(world.signing.signer.signature(PROMOTED, statement))
    return reply
