"""Random streams are named, reproducible and independent."""

import numpy as np

from fedloom.simulation.seeds import stream


def test_a_stream_depends_only_on_its_name():
    expected = stream(3, "split").random(8)
    stream(3, "other").random(100)
    assert np.array_equal(stream(3, "split").random(8), expected)


def test_streams_of_other_seeds_purposes_and_indices_differ():
    names = [(0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1), (0, "a/1", 0)]
    assert len({float(stream(*name).random()) for name in names}) == len(names)
