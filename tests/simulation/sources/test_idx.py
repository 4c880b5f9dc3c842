"""IDX files are read if complete, and otherwise refused with a reason."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation.sources import idx, images

MNIST = Path(__file__).parents[4] / "shared" / "data" / "mnist"


def _encode(values):
    values = np.asarray(values, dtype=np.uint8)
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + bytes(
        values.ravel()
    )


def _write(folder, *, images=7, labels=7, zipped=False):
    rng = np.random.default_rng(0)
    for part in idx.PARTS:
        for name, values in (
            (f"{part}-images-idx3-ubyte", rng.integers(0, 256, (images, 5, 4))),
            (f"{part}-labels-idx1-ubyte", np.arange(labels) % 3),
        ):
            body = _encode(values)
            path = folder / (name + ".gz" * zipped)
            path.write_bytes(gzip.compress(body) if zipped else body)


@pytest.mark.parametrize("zipped", [False, True])
def test_plain_and_gzipped_folders_are_read(tmp_path, zipped):
    """Pixels become float32 in [0, 1], channel first."""
    _write(tmp_path, zipped=zipped)
    loaded = images.idx_folder(folder=str(tmp_path))
    train, held_out = loaded.train, loaded.test
    assert train.x.shape == held_out.x.shape == (7, 1, 5, 4)
    assert train.x.dtype == np.float32
    expected = np.random.default_rng(0).integers(0, 256, (7, 5, 4)) / 255
    assert np.allclose(train.x[:, 0], expected, atol=1e-7)
    assert train.y.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert loaded.num_classes == 3


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        images.idx_folder(folder=str(tmp_path / "nowhere"))
    _write(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UsageError, match=r"t10k-labels-idx1-ubyte or .*found neither"):
        images.idx_folder(folder=str(tmp_path))


GOOD = _encode([[[1, 2], [3, 4]]])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "an empty file"),
        (b"\0\0", "begin with 00 00 08 03"),
        (b"\0\0\x0d\x03" + GOOD[4:], "got 00 00 0d 03"),
        (_encode([1, 2]), "got 00 00 08 01"),
        (gzip.compress(GOOD, mtime=0), r"gzipped without \.gz"),
        (GOOD[:9], "it ends there"),
        (GOOD[:-1], "got only 3"),
        (GOOD + b"\0", "got more"),
        (GOOD[:4] + b"\xff" * 12, "Expected at most"),
    ],
)
def test_damaged_files_are_refused_with_what_was_found(tmp_path, body, message):
    """Header and length are checked before anything of that size is read."""
    path = tmp_path / "images"
    path.write_bytes(body)
    with pytest.raises(UsageError, match=message):
        idx.read(path, num_dimensions=3)


ZIPPED = gzip.compress(GOOD, mtime=0)


@pytest.mark.parametrize(
    "body",
    [GOOD, ZIPPED[:-9], ZIPPED[:10] + b"\xff" * 20, ZIPPED[:-8] + bytes(8)],
    ids=["not gzip", "torn", "wrong bytes", "wrong checksum"],
)
def test_damaged_gzip_is_refused(tmp_path, body):
    path = tmp_path / "images.gz"
    path.write_bytes(body)
    with pytest.raises(UsageError, match="gzipped IDX"):
        idx.read(path, num_dimensions=3)


def test_images_and_labels_must_belong_together(tmp_path):
    _write(tmp_path, images=7, labels=6)
    with pytest.raises(UsageError, match="7 images and 6 labels"):
        images.idx_folder(folder=str(tmp_path))
    _write(tmp_path, images=0, labels=0)
    with pytest.raises(UsageError, match="Expected images"):
        images.idx_folder(folder=str(tmp_path))


@pytest.mark.skipif(not MNIST.is_dir(), reason="needs the MNIST files beside the repository")
def test_mnist_has_its_known_sizes():
    """60,000 and 10,000 images of 28×28 in ten classes."""
    images, labels = idx.read_pair(MNIST, "t10k")
    assert images.shape == (10_000, 28, 28)
    assert np.bincount(labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert idx.read(MNIST / "train-labels-idx1-ubyte.gz", num_dimensions=1).shape == (60_000,)
