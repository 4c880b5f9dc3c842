"""Looking at what changed since the last look shows the same as looking at everything."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedloom.simulation.clock.availability import from_windows, periodic
from fedloom.simulation.clock.watch import Watch

SECONDS = st.floats(0.01, 1e4)


def agree(availability, times):
    """The same bits at each of these times, whatever the caller does with the arrays."""
    watch = Watch(availability)
    for now in times:
        there, changes = watch.look(now)
        expected_there, expected_changes = availability.look(now)
        assert there.tobytes() == expected_there.tobytes()
        assert changes.tobytes() == expected_changes.tobytes()
        there[:], changes[:] = ~there, -1.0


@given(
    cycles=st.lists(st.tuples(SECONDS, SECONDS, st.floats(0.01, 0.99)), min_size=1, max_size=8),
    times=st.lists(st.floats(0, 1e6), max_size=6),
    steps=st.lists(st.floats(0, 1e3), max_size=6),
)
def test_periodic_devices_look_the_same(cycles, times, steps):
    on_s, off_s, phase = (np.array(column) for column in zip(*cycles, strict=True))
    agree(periodic(on_s, off_s, phase), [*times, *np.cumsum(steps)])


@given(
    edges=st.lists(st.integers(0, 12), min_size=0, max_size=8),
    shift=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    steps=st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, 40.0]), max_size=12),
)
def test_devices_of_traces_look_the_same_at_the_times_of_their_changes(edges, shift, steps):
    ends = sorted(edges)[: len(edges) // 2 * 2]
    windows = [list(zip(ends[::2], ends[1::2], strict=True)), [(0, 3), (9, 12)], []]
    availability = from_windows(windows, [12.0, 12.0, 7.0], np.array(shift))
    agree(availability, np.cumsum(steps))
