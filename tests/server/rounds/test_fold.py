"""Folding: the same bits in any order, with checkpoints and restarts, or an integrity error."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.tensors.container import DTYPES
from fedloom.protocol.updates.addends import UpdateFile, add_update
from fedloom.protocol.updates.message import TensorPart, write_body
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.rounds.fold import CHECKPOINT_EVERY, Folder, in_threads, restore
from fedloom.server.threads import Thread
from fedloom.strategies import DELTA, Full, Mask, Partial, Slice, exponent
from fedloom.strategies.exact.partial import TensorSpec

SHAPES = {"w": (40, 50), "b": (7,), "s": ()}
MANIFEST = Manifest(
    dtypes=dict.fromkeys(SHAPES, "F32"),
    specs={n: TensorSpec(shape=s, dtype=DTYPES["F32"]) for n, s in SHAPES.items()},
    size_bytes=0,
)
S = exponent(8.0, 1000.0)


def empty():
    return Partial({(DELTA, name): spec for name, spec in MANIFEST.specs.items()}, S)


def write(directory, number):
    """The update of a client: its coverage depends on its number."""
    rng = np.random.default_rng(number)
    path = directory / f"client-{number}"
    parts = [TensorPart(DELTA, "s", Full(), rng.normal(size=()).astype(np.float32))]
    if number % 3 == 0:
        w = rng.normal(size=SHAPES["w"]).astype(np.float32)
        parts.append(TensorPart(DELTA, "w", Full(), w))
    elif number % 3 == 1:
        w = rng.normal(size=(13, 9)).astype(np.float32)
        parts.append(TensorPart(DELTA, "w", Slice(((5, 18), (41, 50))), w))
    else:
        bits = rng.random(2000) < 0.3
        w = rng.normal(size=int(bits.sum())).astype(np.float32)
        parts.append(TensorPart(DELTA, "w", Mask(bits), w))
    described, size, checksum = write_body(path, parts, MANIFEST)
    header = fleet_pb2.UpdateHeader(
        weight=1 + number / 7, parts=described, size_bytes=size, crc32c=checksum
    )
    return path, header


def add(folder, client, update):
    folder.fold({client: UpdateFile(*update)})


@pytest.fixture(scope="module")
def updates(tmp_path_factory):
    """Twenty updates on disk."""
    directory = tmp_path_factory.mktemp("updates")
    return [write(directory, number) for number in range(20)]


@pytest.fixture(scope="module")
def total(updates):
    """Their sum, folded in order without a restart."""
    folder = Folder(empty(), set())
    for number, update in enumerate(updates):
        add(folder, f"c{number}", update)
    return folder.partial


@pytest.mark.long
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=30,
)
@given(
    order=st.permutations(range(20)), saves=st.sets(st.integers(0, 19), max_size=4), data=st.data()
)
def test_restarts_and_any_order_give_the_same_bits(tmp_path, updates, total, *, order, saves, data):
    """Saved and restored at any point, with lost updates folded again, the sum is the same."""
    path = tmp_path / "checkpoint"
    path.unlink(missing_ok=True)
    folder = restore(path, empty)
    for position, number in enumerate(order):
        add(folder, f"c{number}", updates[number])
        if position in saves:
            released = folder.save(path)
            assert all(name.startswith("client-") for name in released)
            if data.draw(st.booleans()):
                folder = restore(path, empty)
    folder = restore(path, empty)  # later updates than the last checkpoint are lost
    for number, update in enumerate(updates):
        add(folder, f"c{number}", update)
    assert folder.partial == total
    assert folder.folded == {f"c{n}" for n in range(20)}


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=20, deadline=None)
@given(order=st.permutations(range(20)), cuts=st.sets(st.integers(1, 19)))
def test_updates_that_are_folded_together_give_the_same_bits(updates, total, order, cuts):
    """However they are grouped, and though some of a group are in the sum already."""
    folder = Folder(empty(), set())
    for start, stop in pairwise([0, *sorted(cuts), 20]):
        group = order[max(start - 1, 0) : stop]
        folder.fold({f"c{number}": UpdateFile(*updates[number]) for number in group})
    assert folder.partial == total
    assert len(folder.unsaved) == 20


@pytest.fixture(scope="module")
def helpers():
    pool = Thread("tested", 3)
    yield pool
    pool.close()


@pytest.mark.parametrize("narrowly", [False, True])
def test_threads_give_the_same_bits(tmp_path, helpers, narrowly):
    """Of sums whose small values need words of their own, and of what narrow sums count."""
    shapes = {f"t{n}": (1500 + n, 50) for n in range(6)}
    specs = {n: TensorSpec(shape=s, dtype=DTYPES["F32"]) for n, s in shapes.items()}
    manifest = Manifest(dtypes=dict.fromkeys(shapes, "F32"), specs=specs, size_bytes=0)
    updates = {}
    for number in range(5):
        rng, path = np.random.default_rng(number), tmp_path / f"{number}"
        values = {n: rng.normal(size=s) * 2.0 ** rng.integers(-90, 1, s) for n, s in shapes.items()}
        parts = [TensorPart(DELTA, n, Full(), v.astype(np.float32)) for n, v in values.items()]
        described, size, crc = write_body(path, parts, manifest)
        header = fleet_pb2.UpdateHeader(
            weight=1 + number / 7, parts=described, size_bytes=size, crc32c=crc
        )
        updates[f"c{number}"] = UpdateFile(path, header)

    def sum_of(for_each):
        specs = {(DELTA, name): spec for name, spec in manifest.specs.items()}
        folder = Folder(Partial(specs, 8 if narrowly else S, narrow=narrowly), set())
        folder.fold(updates, for_each)
        return folder.partial

    shared = []

    def for_each(call, keys):
        shared.extend(keys)
        helpers.wait_all(call, keys)

    assert sum_of(for_each) == (alone := sum_of(None))
    assert len(shared) == (0 if narrowly else len(shapes))  # two threads could lose a count
    assert not narrowly or 0 < alone.vanished < alone.nonzero


def test_several_threads_fold_large_updates_only(helpers):
    def sized(size_bytes):
        return [UpdateFile(Path(), fleet_pb2.UpdateHeader(size_bytes=size_bytes))] * 2

    assert in_threads(helpers, sized(8 << 20)) == helpers.wait_all
    assert in_threads(helpers, sized((8 << 20) - 1)) is None


def test_update_folded_twice_counts_once(updates, total):
    folder = Folder(empty(), set())
    for _ in range(2):
        for number, update in enumerate(updates):
            add(folder, f"c{number}", update)
    assert folder.partial == total


def test_checkpoint_is_due_at_fixed_intervals(tmp_path, updates):
    """The spool stays bounded, and each update is released once."""
    folder = Folder(empty(), set())
    due = []
    for number, update in enumerate(updates):
        add(folder, f"c{number}", update)
        due.append(folder.is_checkpoint_due)
    assert due.index(True) == CHECKPOINT_EVERY - 1
    assert len(folder.save(tmp_path / "sum")) == 20
    assert folder.save(tmp_path / "sum") == []


def test_update_without_tensors_needs_no_file(tmp_path):
    folder = Folder(empty(), set())
    add(folder, "c", (tmp_path / "no such file", fleet_pb2.UpdateHeader(weight=1.0)))
    assert not folder.is_checkpoint_due
    assert folder.folded == {"c"}
    assert folder.partial == empty()
    assert folder.save(tmp_path / "sum") == []


def test_half_written_checkpoint_is_ignored(tmp_path, updates):
    path = tmp_path / "sum"
    folder = Folder(empty(), set())
    add(folder, "c0", updates[0])
    folder.save(path)
    (tmp_path / "sum.tmp").write_bytes(b"half")
    assert restore(path, empty).partial == folder.partial


def test_restored_sum_can_be_added_to(tmp_path, updates):
    """The folder copies the checkpoint's arrays; the file does not change."""
    path = tmp_path / "sum"
    folder = Folder(empty(), set())
    add(folder, "c0", updates[0])
    folder.save(path)
    before = path.read_bytes()
    again = restore(path, empty)
    add(again, "c1", updates[1])
    assert path.read_bytes() == before
    assert again.partial != folder.partial


def test_truncated_body_is_an_integrity_error(tmp_path, updates):
    path, header = updates[0]
    cut = tmp_path / "cut"
    cut.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(IntegrityError):
        add_update(empty(), cut, header)
    cut.write_bytes(b"")
    with pytest.raises(IntegrityError):
        add_update(empty(), cut, header)


def test_a_sum_with_a_part_of_an_update_is_neither_added_to_nor_saved(tmp_path, updates):
    """A checkpoint of it would count that part twice: the update is added again after a restart."""
    path, header = updates[0]
    cut = tmp_path / "cut"
    cut.write_bytes(path.read_bytes()[:-4])
    folder = Folder(empty(), set())
    with pytest.raises(IntegrityError):
        add(folder, "c0", (cut, header))
    assert folder.folded == set()
    with pytest.raises(IntegrityError, match="a part of an update"):
        add(folder, "c1", updates[1])
    with pytest.raises(IntegrityError, match="a part of an update"):
        folder.save(tmp_path / "sum")
    assert not (tmp_path / "sum").exists()


def narrow():
    """On a grid of steps of 2^-2, of which a tenth of the values is less than a half."""
    return Partial({(DELTA, name): spec for name, spec in MANIFEST.specs.items()}, 2, narrow=True)


@pytest.mark.parametrize("seed", range(4))
def test_restarts_keep_the_count_of_values_that_became_zero(tmp_path, updates, seed):
    """Some folded before a checkpoint, some lost with the process and folded again."""
    whole, rng = Folder(narrow(), set()), np.random.default_rng(seed)
    for number, update in enumerate(updates):
        add(whole, f"c{number}", update)
    folder, order = Folder(narrow(), set()), rng.permutation(20)
    for place in order[:12]:
        add(folder, f"c{place}", updates[place])
        if place == order[7]:
            folder.save(tmp_path / "checkpoint")
    again = restore(tmp_path / "checkpoint", narrow)
    assert again.partial.nonzero < folder.partial.nonzero
    for place in order:
        add(again, f"c{place}", updates[place])
    assert again.partial == whole.partial
    assert 0 < whole.partial.vanished < whole.partial.nonzero
