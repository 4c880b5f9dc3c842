"""The end of a private round: noise on its sum, then the strategy's step.

Servers and simulations use the same function. The mechanism's memory is in the strategy's state,
in a separate slot that the strategy never sees.
"""

from typing import Any, Final

from numpy.typing import NDArray

from fedloom.strategies.base import Strategy
from fedloom.strategies.exact.partial import Params, Partial
from fedloom.strategies.privacy.release import Memory, Release
from fedloom.strategies.privacy.streams import Stream
from fedloom.strategies.state import State

SLOT: Final = "privacy"


def memory_of(release: Release, state: State) -> Memory:
    """Return the mechanism's memory from a strategy's state."""
    return dict(state.slots.get(SLOT) or release.init())


def finish(
    strategy: Strategy,
    release: Release,
    state: State,
    model: Params,
    partial: Partial,
    *,
    round: int,  # noqa: A002 - the field's word
    stream: Stream,
) -> tuple[dict[str, NDArray[Any]], State]:
    """Return the next model and state of a private run; see `Strategy.finish`.

    Args:
        strategy: of the run.
        release: of the run.
        state: including the mechanism's memory.
        model: the current parameters.
        partial: the round's sum; consumed.
        round: its number.
        stream: of the run's secret.
    """
    memory = memory_of(release, state)
    means, memory = release.means(partial, memory, round=round, step=state.step, stream=stream)
    own = State(step=state.step, slots={n: s for n, s in state.slots.items() if n != SLOT})
    new, after = strategy.finish(own, model, means)
    slots = {**after.slots, SLOT: memory} if memory else after.slots
    return new, State(step=after.step, slots=slots)
