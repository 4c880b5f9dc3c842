"""WebDataset's shards, from small tar files in its format."""

import io
import tarfile

import numpy as np
import pytest

from fedloom.protocol.errors import UsageError
from fedloom.simulation import sources
from fedloom.simulation.data.mapped import MappedRows


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder of converted rows."""
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache" / "converted"


def _npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def _shard(file, members):
    with tarfile.open(file, "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def _shards(folder, count=12, form=np.uint8):
    x = (np.arange(count * 12) % 200).reshape(count, 3, 2, 2).astype(form)
    for shard in range(2):
        members = {}
        for row in range(shard, count, 2):
            key = f"train/{row:04}"
            members[f"{key}.npy"] = _npy(x[row])
            members[f"{key}.cls"] = f"{row % 3}\n".encode()
            members[f"{key}.writer.txt"] = f"w{row % 4}".encode()
        _shard(folder / f"part-{shard:03}.tar", members)
    return x


def _load(folder, **settings):
    return sources.load(source="webdataset", seed=1, folder=str(folder), test=0, **settings)


def test_examples_are_read_from_neighbouring_members(tmp_path, cache):
    """In the order of the shards; each owner a client; converted once."""
    x = _shards(tmp_path)
    order = [*range(0, 12, 2), *range(1, 12, 2)]
    population = _load(tmp_path, client="writer.txt")
    assert isinstance(population.examples.x, MappedRows)
    np.testing.assert_array_equal(population.examples.x[:], x[order].astype(np.float32) / 255)
    assert population.examples.y.tolist() == [row % 3 for row in order]
    assert population.names == ["w0", "w1", "w2", "w3"]
    (folder,) = cache.iterdir()
    before = (folder / "x.rows").stat().st_mtime_ns
    _load(tmp_path, client="writer.txt")
    assert [f.name for f in cache.iterdir()] == [folder.name]
    assert (folder / "x.rows").stat().st_mtime_ns == before
    _shards(tmp_path, count=14)
    assert len(_load(tmp_path, client="writer.txt").examples) == 14


def test_images_are_pixels(tmp_path):
    """Channel first."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.arange(48).reshape(4, 4, 3).astype(np.uint8)
    out = io.BytesIO()
    image.fromarray(pixels).save(out, "png")
    _shard(tmp_path / "a.tar", {"0.png": out.getvalue(), "0.cls": b"1"})
    population = _load(tmp_path, inputs="png", clients=1)
    expected = pixels.transpose(2, 0, 1).astype(np.float32) / 255
    np.testing.assert_array_equal(population.examples.x[0], expected)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.npy": _npy(np.zeros(2))}, r"a member \.cls of /a of .*, got npy"),
        ({"a.npy": _npy(np.zeros(2)), "a.cls": b"cat"}, "cannot be read: invalid literal"),
        ({"a.npy": b"no array", "a.cls": b"1"}, "cannot be read"),
        ({"a.npy": _npy(np.array([{}])), "a.cls": b"1"}, "allow_pickle"),
        (
            {
                "a.npy": _npy(np.zeros(2)), "a.cls": b"1",
                "b.npy": _npy(np.zeros(3)), "b.cls": b"1",
            },
            "inputs of one form",
        ),
        ({}, "got none"),
    ],
)  # fmt: skip
def test_a_bad_shard_is_refused_and_leaves_nothing(tmp_path, cache, members, message):
    """With the shard and the example."""
    _shard(tmp_path / "a.tar", members)
    with pytest.raises(UsageError, match=message):
        _load(tmp_path, clients=1)
    assert list(cache.iterdir()) == []


def test_a_folder_without_shards_or_with_another_file_is_refused(tmp_path):
    """Nothing is guessed."""
    with pytest.raises(UsageError, match="got none"):
        _load(tmp_path)
    (tmp_path / "a.tar").write_bytes(b"no archive")
    with pytest.raises(UsageError, match="Expected a tar file"):
        _load(tmp_path)
