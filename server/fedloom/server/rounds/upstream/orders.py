"""What a parent server orders of this one: rounds of a run, which is held for its devices."""

import asyncio
from dataclasses import dataclass

from fedloom.server.engine import RoundKind
from fedloom.server.ledger.rows import RoundRow
from fedloom.server.planning.round_plan import UpstreamRound
from fedloom.server.planning.state_note import StateNote
from fedloom.server.rounds.commit import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOrder:
    """A round of the parent.

    Attributes:
        number: of the round.
        kind: training or evaluation.
        trained: training rounds of the run committed before it.
        model: digest of the model from which it starts.
        state: the note of the files beside it, and of what the parent's strategy asks.
        upstream: what the parent decides of it.
    """

    number: int
    kind: RoundKind
    trained: int
    model: str
    state: str
    upstream: UpstreamRound

    @property
    def files(self) -> frozenset[str]:
        """Digests of what its devices may download."""
        return StateNote.read(self.state).digests | {self.model}


class Orders:
    """The rounds that a parent has ordered of one run.

    Args:
        site: name of this server at the parent.
    """

    def __init__(self, site: str) -> None:
        self.site = site
        self._orders: dict[int, RoundOrder] = {}
        self._ended: dict[int, asyncio.Future[Outcome]] = {}

    def add(self, order: RoundOrder) -> None:
        """Note an order whose round will open, or is open already."""
        self._orders = {order.number: order}
        self._ended = {order.number: asyncio.get_running_loop().create_future()}

    def of(self, number: int) -> RoundOrder:
        """The order of a round."""
        return self._orders[number]

    def end(self, number: int, outcome: Outcome) -> None:
        """Note how a round ended."""
        future = self._ended.get(number)
        if future is not None and not future.done():
            future.set_result(outcome)

    async def outcome(self, number: int) -> Outcome:
        """Wait for the end of an ordered round."""
        return await asyncio.shield(self._ended[number])


def order_of(row: RoundRow, site: str) -> RoundOrder:
    """The order of a round that is continued after a restart; its deadline is in the ledger.

    Args:
        row: of the round.
        site: name of this server at the parent.
    """
    kept = row.upstream or {}
    left_s = max(1.0, row.deadline_at - row.opened_at)
    return RoundOrder(
        number=row.number,
        kind=RoundKind(row.kind),
        trained=kept["trained"],
        model=row.model_in,
        state=kept.get("state", "null"),
        upstream=UpstreamRound(
            site=site, path=kept.get("path", site), goal=kept["goal"], deadline_s=left_s
        ),
    )
