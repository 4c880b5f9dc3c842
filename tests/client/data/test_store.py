"""The example store: acknowledged examples are durable, and old ones are dropped."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from fedloom.client.data import ExampleStore
from fedloom.client.numpy import fit_client
from fedloom.protocol.errors import UsageError
from support.tasks import task

FORM = {"x": ((3,), "float32"), "y": ((), "int64")}


def _store(tmp_path, **settings):
    return ExampleStore(tmp_path / "examples.db", **{**FORM, **settings})


def _fill(store, count, first=0):
    for number in range(first, first + count):
        store.append(np.full(3, number, np.float32), number)


def test_examples_are_stored_in_order_over_restarts(tmp_path):
    """With their values and dtypes."""
    _fill(_store(tmp_path), 5)
    x, y = _store(tmp_path).snapshot().all()
    np.testing.assert_array_equal(x, np.repeat(np.arange(5, dtype=np.float32)[:, None], 3, 1))
    assert y.tolist() == [0, 1, 2, 3, 4]
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    assert (tmp_path / "examples.db").stat().st_mode & 0o077 == 0


def test_a_task_uses_the_examples_stored_when_it_began(tmp_path):
    """Another connection appends and drops during it; the next task uses those."""
    store = _store(tmp_path, most=10)
    _fill(store, 10)
    seen = []

    def fit(params, shard, asked):
        seen.append(shard.all()[1].tolist())
        _fill(_store(tmp_path, most=10), 3, first=10 + 3 * len(seen))
        seen.append(shard.all()[1].tolist())
        return params

    client = fit_client(fit, store.train)
    client.train({}, task())
    client.train({}, task())
    assert seen[0] == seen[1] == list(range(10))
    assert seen[2] == seen[3] == [*range(3, 10), 13, 14, 15]


def test_a_torch_client_uses_a_snapshot_for_each_task(tmp_path):
    """To train on and to evaluate on."""
    torch = pytest.importorskip("torch")
    from fedloom.client.torch import TorchClient

    store = _store(tmp_path, held_out=0.3)
    seen = []

    def loss(outputs, targets):
        seen.append(len(targets))
        _fill(store, 1, first=1000 + len(seen))
        return outputs.sum() * 0.0

    client = TorchClient(torch.nn.Linear(3, 1), store.train, loss, evaluate=store.held_out)
    assert not client.can_evaluate()
    with pytest.raises(UsageError, match="at least one example"):
        client.train(client.initial(), task())
    _fill(store, 20)
    trained, held = store.count(), store.count(held_out=True)
    _, num_examples, _ = client.train(client.initial(), task(epochs=2, batch_size=4))
    assert (num_examples, sum(seen)) == (trained, 2 * trained)
    assert client.evaluate(client.initial(), task())[0] >= held
    assert client.train(client.initial(), task(epochs=1, batch_size=0))[1] > trained


@pytest.mark.parametrize("limit", [{"most": 4}, {"most_bytes": 4 * 20 + 19}])
def test_the_oldest_examples_are_dropped(tmp_path, limit):
    """By number, or by bytes."""
    store = _store(tmp_path, **limit)
    _fill(store, 7)
    assert store.snapshot().all()[1].tolist() == [3, 4, 5, 6]
    store.extend([(np.zeros(3), n) for n in range(10, 16)])
    assert store.snapshot().all()[1].tolist() == [12, 13, 14, 15]


def test_the_file_does_not_grow_with_dropped_examples(tmp_path):
    """Of 4 MB that were written, a small part remains."""
    store = ExampleStore(tmp_path / "e.db", x=((100,), "float64"), y=((), "int8"), most=50)
    for _ in range(100):
        store.extend([(np.zeros(100), 0)] * 50)
    assert (tmp_path / "e.db").stat().st_size < 4 * 50 * 801
    assert (tmp_path / "e.db-wal").stat().st_size < 1.5 * 2**20
    assert store.count() == 50


def test_examples_that_are_too_old_are_dropped(tmp_path):
    """Also without a new append."""
    now = [100.0]
    store = _store(tmp_path, most_age_s=10, clock=lambda: now[0])
    _fill(store, 2)
    now[0] = 105.0
    _fill(store, 1, first=2)
    assert store.count() == 3
    now[0] = 111.0
    assert store.snapshot().all()[1].tolist() == [2]
    assert len(store.train) == 1
    _fill(store, 1, first=3)
    now[0] = 0.0  # a clock set back restores nothing
    assert store.snapshot().all()[1].tolist() == [2, 3]


@pytest.mark.long
def test_an_example_is_always_held_out_or_never(tmp_path):
    """By its content: an equal example is in the same part, also after a restart."""
    store = _store(tmp_path, held_out=0.25)
    _fill(store, 400)
    held, train = store.held_out.fixed().all()[1], store.train.fixed().all()[1]
    assert len(held) + len(train) == 400
    assert not set(held) & set(train)
    assert 60 < len(held) < 140
    again = _store(tmp_path, held_out=0.25)
    _fill(again, 400)
    assert set(again.held_out.fixed().all()[1]) == set(held)
    more = _store(tmp_path, held_out=0.5)  # a larger share includes the earlier ones
    assert set(more.held_out.fixed().all()[1]) > set(held)


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (np.zeros(4), 0, r"x of shape \(3,\) .*got \(4,\)"),
        (np.zeros(3), [1], r"y of shape \(\) .*got \(1,\)"),
        ([0, np.nan, 0], 0, "finite x .*got nan"),
        ([0, 1e300, 0], 0, "finite x .*got 1e\\+300"),
        (["a", "b", "c"], 0, "x of float32"),
        (np.zeros(3), 0.5, "y of int64 .*got float64"),
        (np.zeros(3), None, "y of int64"),
        (np.zeros(3, complex), 0, "x of float32 .*got complex128"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_an_invalid_example_is_refused_and_nothing_stored(tmp_path, x, y, sentence):
    """Also of several at once; the message names it."""
    store = _store(tmp_path)
    with pytest.raises(UsageError, match=sentence):
        store.append(x, y)
    with pytest.raises(UsageError, match="example 2 of 2"):
        store.extend([(np.zeros(3), 1), (x, y)])
    assert store.count() == 0


def test_integers_must_fit_their_dtype(tmp_path):
    """A label 3 fits uint8; 300 does not."""
    store = ExampleStore(tmp_path / "e.db", x=((), "float32"), y=((), "uint8"))
    store.append(0.0, 3)
    store.append(np.float64(0.1), True)
    with pytest.raises(UsageError, match="uint8"):
        store.append(0.0, 300)
    assert store.snapshot().all()[1].tolist() == [3, 1]


def test_other_forms_files_and_limits_are_refused(tmp_path):
    _store(tmp_path)
    with pytest.raises(UsageError, match="Use another file"):
        ExampleStore(tmp_path / "examples.db", x=((4,), "float32"), y=((), "int64"))
    (tmp_path / "text").write_text("something else entirely, and long enough to be looked at")
    with pytest.raises(UsageError, match="not a database"):
        ExampleStore(tmp_path / "text", **FORM)
    for wrong in ({"most": 0}, {"most_bytes": 19}, {"most_age_s": 0}, {"held_out": 1}):
        with pytest.raises(UsageError):
            _store(tmp_path, **wrong)


def test_an_empty_store_is_an_error_only_for_a_task(tmp_path):
    """A new device has no examples yet."""
    client = fit_client(lambda p, s, t: p, _store(tmp_path).train)
    assert not client.can_evaluate()
    with pytest.raises(UsageError, match="at least one example"):
        client.train({}, task())


def test_threads_append_to_one_store(tmp_path):
    store = _store(tmp_path)
    threads = [threading.Thread(target=_fill, args=(store, 20, 100 * n)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = sorted(100 * n + i for n in range(4) for i in range(20))
    assert sorted(store.snapshot().all()[1].tolist()) == expected


WRITER = """
import sys, numpy as np
from fedloom.client.data import ExampleStore
store = ExampleStore(sys.argv[1], x=((3,), "float32"), y=((), "int64"))
number = int(sys.argv[2])
while True:
    store.append(np.full(3, number, np.float32), number)
    print(number, flush=True)
    number += 1
"""


@pytest.mark.long
def test_a_killed_writer_loses_no_acknowledged_example(tmp_path):
    """SIGKILL during appends of two processes; at most one more than acknowledged is stored."""
    path = tmp_path / "examples.db"
    store = _store(tmp_path)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(first)], stdout=subprocess.PIPE, text=True
        )
        for first in (0, 1_000_000)
    ]
    told = []
    for writer, count in zip(writers, (25, 60), strict=True):
        lines = [int(writer.stdout.readline()) for _ in range(count)]
        os.kill(writer.pid, signal.SIGKILL)
        lines += [int(line) for line in writer.stdout.read().splitlines()]
        writer.wait()
        writer.stdout.close()
        told.append(lines)
    x, y = store.snapshot().all()
    assert (x[:, 0] == y.astype(np.float32)).all()
    for lines, mine in zip(told, (y[y < 500_000], y[y >= 500_000]), strict=True):
        assert mine.tolist() == list(range(lines[0], lines[0] + len(mine)))
        assert len(lines) <= len(mine) <= len(lines) + 1
    store.append(np.zeros(3), 7)
    assert store.count() == len(y) + 1
