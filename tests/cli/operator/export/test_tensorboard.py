"""TensorBoard event files."""

import math
import struct
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.cli.operator.export import tensorboard
from fedloom.cli.operator.export.tensorboard import PATTERN, EventFile, read


def _only(folder):
    (path,) = folder.glob(PATTERN)
    return path


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
STEPS = st.lists(
    st.tuples(st.integers(0, 2**40), st.dictionaries(st.text(max_size=9), FLOATS, min_size=1)),
    max_size=5,
)


@pytest.mark.long
@settings(max_examples=40)
@given(steps=STEPS)
def test_event_files_survive_a_round_trip(tmp_path_factory, steps):
    """All names, finite values and steps."""
    folder = tmp_path_factory.mktemp("events")
    file = EventFile(folder)
    for step, scalars in steps:
        file.append(step, scalars, 1.5)
    file.close()
    assert list(read(_only(folder))) == steps
    assert tensorboard.steps(folder) == {step for step, _ in steps}


def test_first_record_matches_the_format(tmp_path):
    """Length, masked CRC-32C and file version, computed by hand."""
    EventFile(tmp_path).close()
    data = _only(tmp_path).read_bytes()
    assert struct.unpack("<Q", data[:8]) == (24,)
    assert data[8:12].hex() == "a37f4b22"
    assert data[12:13] == b"\x09"
    assert data[21:36] == b"\x1a\x0dbrain.Event:2"
    assert len(data) == 12 + 24 + 4


def test_reading_ends_at_a_damaged_record(tmp_path):
    """A killed export continues after the last complete step."""
    file = EventFile(tmp_path)
    for step in (1, 2, 3):
        file.append(step, {"loss": 0.5})
    file.close()
    path = _only(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert [step for step, _ in read(path)] == [1, 2]
    path.write_bytes(whole[:-10] + b"\xff" + whole[-9:])
    assert max(tensorboard.steps(tmp_path)) == 2


READER = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1]).Reload()
print(json.dumps({t: [(e.step, e.wall_time, e.value) for e in found.Scalars(t)]
                  for t in found.Tags()["scalars"]}))
"""


def test_tensorboard_reads_the_files(tmp_path):
    """If it is installed: names, steps, times and values; a resumed file hides later steps."""
    pytest.importorskip("tensorboard")
    import json

    first = EventFile(tmp_path)
    for step in (1, 2, 3):
        first.append(step, {"training/loss": 1 / step, "é": math.pi}, 1000.0 + step)
    first.close()
    EventFile(tmp_path, before=2).close()
    done = subprocess.run(
        [sys.executable, "-c", READER, tmp_path], check=True, capture_output=True, text=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert [step for step, _, _ in found["training/loss"]] == [1, 2]
    assert found["é"][0] == [1, 1001.0, pytest.approx(math.pi)]
