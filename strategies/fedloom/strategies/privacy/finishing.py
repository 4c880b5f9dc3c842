"""The end of a private round: noise on its sum, then the strategy's step.

Servers and simulations use the same function. The mechanism's memory is in the strategy's state,
in a separate slot that the strategy never sees.
"""

from collections.abc import Mapping
from typing import Any, Final

from numpy.typing import NDArray

from fedloom.strategies.base import Strategy
from fedloom.strategies.exact.partial import Params, Partial
from fedloom.strategies.privacy.banded_noise import NOISE, noise_by_round, noise_name
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


def parted(state: State) -> tuple[dict[int, dict[str, NDArray[Any]]], State]:
    """Return the noise of earlier rounds that a state keeps, round → tensor → array; and the rest.

    A round's noise does not change, so it can be stored once, in a file of its own.
    """
    memory = state.slots.get(SLOT, {})
    kept = noise_by_round(memory)
    if not kept:
        return {}, state
    rest = {name: array for name, array in memory.items() if not name.startswith(f"{NOISE}/")}
    return kept, State(step=state.step, slots={**state.slots, SLOT: rest})


def joined(state: State, kept: Mapping[int, Mapping[str, NDArray[Any]]]) -> State:
    """Return the state that `parted` parted."""
    memory = dict(state.slots.get(SLOT, {}))
    for number, tensors in kept.items():
        memory |= {noise_name(number, name): array for name, array in tensors.items()}
    return State(step=state.step, slots={**state.slots, SLOT: memory})
