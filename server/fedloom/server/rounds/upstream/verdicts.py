"""What a server tells its sites of a run: which of their sums counted, and whether it has ended."""

from collections.abc import Iterable
from functools import partial

from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.rounds.context import RoundsContext


async def tell(context: RoundsContext, run: str, sites: Iterable[str], *, ended: bool) -> None:
    """Send these sites how a run goes on, as the ledger has it now.

    Rounds that this server has sent to a parent itself are not over until the parent says so.

    Args:
        context: of the rounds.
        run: id.
        sites: names; those that are not connected get nothing.
        ended: whether the run has ended.
    """
    over = await context.in_ledger(context.ledger.last_over, run)
    for site in sites:
        last = partial(context.ledger.last_counted, with_tensors=False)
        counted = await context.in_ledger(last, run, site)
        verdict = fleet_pb2.SiteVerdict(run=run, counted=counted, over=over, ended=ended)
        context.fleet.send(site, fleet_pb2.ServerMessage(site=verdict))
