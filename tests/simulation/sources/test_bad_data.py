"""Data as people have them by mistake: each is refused with what was expected, or read right."""

import io
import json
import tarfile

import numpy as np
import pytest
import torch

from fedloom.protocol.errors import UsageError
from fedloom.simulation import sources

X = np.random.default_rng(0).random((12, 4)).astype(np.float32)
Y = np.arange(12) % 3


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder of converted rows."""
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache" / "converted"


def _load(source, **settings):
    return sources.load(source=source, seed=1, **{"test": 0, "clients": 2, **settings})


def _stored(source, folder, arrays):
    """The arrays as a file of `arrays`, or a folder of `mapped`."""
    if source == "arrays":
        np.savez(folder / "all.npz", **arrays)
        return str(folder / "all.npz")
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return str(folder)


# ---- arrays --------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["arrays", "mapped"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.float32(3)}, "one target for each"),
        ({"y": np.int64(1)}, "one target for each"),
        ({"x": X[:, :0]}, "at least one value for each input"),
        ({"y": Y + 10**12}, "class numbers from 0 to 999999"),
        ({"y": Y.astype(np.uint64) + np.uint64(2**63)}, "got 922337203685477580"),
        ({"y_test": Y}, "x_test and y_test"),
        ({"x_test": X[:, :2], "y_test": Y}, r"test inputs of shape \(4,\)"),
        ({"x_test": X[:5], "y_test": Y}, "one target for each"),
        ({"x_test": X[:0], "y_test": Y[:0]}, "one target for each"),
        ({"x_test": (X * 255).astype(np.uint8), "y_test": Y}, "as numbers .*got pixels"),
        ({"x_test": (X * 9).astype(int), "y_test": Y}, "as numbers .*got tokens"),
        ({"x_test": X, "y_test": Y * 1.0}, "integer class numbers, got float64"),
        ({"y": Y * 1.0, "x_test": X, "y_test": Y}, "test targets of shape .* float32, .* int64"),
        ({"x_test": X, "y_test": Y - 1}, "class numbers from 0 to 2, got -1"),
        ({"owners": np.where(Y == 1, np.nan, Y)}, "owner of each example, got nan in row 2"),
        ({"owners": np.array(["", "b", "c"] * 4)}, "got '' in row 1"),
        ({"owners": np.array([{}] * 12)}, "[Oo]bject"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, source, change, message):
    """In memory and mapped, by the same rule."""
    file = _stored(source, tmp_path, {"x": X, "y": Y} | change)
    with pytest.raises(UsageError, match=message):
        sources.load(source=source, seed=1, file=file)


def test_tokens_that_int64_cannot_hold_are_refused(tmp_path):
    """They became negative."""
    x = np.full((12, 1), 2**63, np.uint64)
    with pytest.raises(UsageError, match=r"up to 9,223,372,036,854,775,807, got"):
        _load("arrays", file=_stored("arrays", tmp_path, {"x": x, "y": Y}))
    with pytest.raises(UsageError, match=r"up to 9,223,372,036,854,775,807, got"):
        _load("mapped", file=_stored("mapped", tmp_path, {"x": x, "y": Y})).examples.x[:3]


@pytest.mark.parametrize("source", ["arrays", "mapped"])
def test_byte_order_layout_and_classes_of_the_test_are_read_right(tmp_path, source):
    arrays = {
        "x": X.astype(">f8"),
        "y": Y.astype(">i2"),
        "x_test": X.astype(">f4"),
        "y_test": Y + 4,
    }
    population = sources.load(
        source=source, seed=1, clients=2, file=_stored(source, tmp_path, arrays)
    )
    np.testing.assert_array_equal(population.examples.x[:], X)
    assert (population.examples.y.tolist(), population.num_classes) == (Y.tolist(), 7)


@pytest.mark.parametrize("content", [b"", b"text", "npy"])
def test_a_file_that_is_no_archive_is_refused(tmp_path, content):
    if content == "npy":
        out = io.BytesIO()
        np.save(out, X)
        content = out.getvalue()
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(UsageError, match=r"cannot be read as a \.npz file"):
        _load("arrays", file=str(tmp_path / "a.npz"))


# ---- data of a program ---------------------------------------------------------------------------


class _Listed(torch.utils.data.Dataset):
    def __init__(self, *rows):
        self._rows = rows

    def __len__(self):
        return len(self._rows)

    def __getitem__(self, index):
        return self._rows[index]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((X[0], 0), (X[1], 1.7)),
        ((np.array([1, 2]), 0), (np.array([1.5, 2.7]), 1)),
        ((np.array([1, 2], np.uint8), 0), (np.array([300, 2]), 1)),
    ],
)
def test_a_torch_data_set_of_several_dtypes_is_refused(first, second):
    """Later examples were cut to the dtype of the first: 1.7 became 1, and 300 became 44."""
    with pytest.raises(UsageError, match=r"examples of one dtype, .* at 1"):
        sources.from_torch(_Listed(first, second), clients=2)


def test_images_of_pillow_have_channels_first():
    image = pytest.importorskip("PIL.Image")
    pixels = np.arange(24).reshape(2, 4, 3).astype(np.uint8)
    made = image.fromarray(pixels)
    population = sources.from_torch(_Listed((made, 0), (made, 1)), clients=2)
    expected = pixels.transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(population.examples.x[1], expected)
    with pytest.raises(UsageError, match=r"images of the mode .*got P"):
        sources.from_torch(_Listed((made.convert("P"), 0), (made.convert("P"), 1)), clients=2)


@pytest.mark.parametrize("make", [sources.from_arrays, lambda x, y, **k: _load((x, y), **k)])
def test_masked_and_sparse_inputs_are_refused_and_lists_and_tensors_read(make):
    """The values behind a mask were trained on."""
    with pytest.raises(UsageError, match="without a mask"):
        make(np.ma.array(X, mask=X > 0.5), Y, clients=2)
    with pytest.raises(UsageError, match="to_dense"):
        make(torch.tensor(X).to_sparse(), Y, clients=2)
    for x in (X.tolist(), torch.tensor(X), torch.tensor(X).double()):
        np.testing.assert_array_equal(make(x, Y.tolist(), clients=2).examples.x, X)


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        ([None, "a", "b"] * 4, "got None in row 1"),
        ([float("nan"), "a", "b"] * 4, "got nan in row 1"),
        ([1, "1", "b"] * 4, "owners of one kind, got int and str"),
    ],
)
def test_examples_without_an_owner_are_refused(owners, message):
    """A client of the name nan had them."""
    with pytest.raises(UsageError, match=message):
        sources.from_arrays(X, Y, owners=owners)


# ---- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("a,y\n1,n\n2,\n", {}, "each row of column 'y' .*got '' in line 3"),
        ("a,w,y\n1,u,n\n2,,m\n", {"client": "w"}, "each row of column 'w' .*in line 3"),
        ("a,y\n1,2\n3,4\n", {"features": ["a", "y"]}, "different columns as features, target"),
        ("a,y\n1,2\n3,4\n", {"features": ["a", "a"]}, "different columns"),
        ("a,w,y\n1,2,n\n3,4,m\n", {"client": "w", "features": ["w"]}, "different columns"),
        ("a,y\n1e39,n\n", {}, "finite numbers in column 'a'.* line 2"),
    ],
)
def test_a_bad_table_is_refused(tmp_path, text, settings, message):
    """The target among the inputs, for one, was trained on."""
    (tmp_path / "a.csv").write_text(text)
    clients = None if "client" in settings else 2
    with pytest.raises(UsageError, match=message):
        _load("csv", file=str(tmp_path / "a.csv"), target="y", clients=clients, **settings)


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_a_table_of_another_system_is_the_same(tmp_path, ending, bom):
    text = 'a,"b, c",y\n1,2,"x ""n"""\n3,4,m\n'.replace("\n", ending)
    (tmp_path / "a.csv").write_bytes(bom + text.encode())
    population = _load("csv", file=str(tmp_path / "a.csv"), target="y")
    assert population.examples.x.tolist() == [[1, 2], [3, 4]]
    assert population.class_names == ("m", 'x "n"')


def test_classes_of_whole_numbers_are_in_the_order_of_the_numbers(tmp_path):
    """As in a Parquet file; as texts 10 was before 9."""
    (tmp_path / "a.csv").write_text("a,y\n1,10\n2,9\n3,100\n4,-1\n")
    population = _load("csv", file=str(tmp_path / "a.csv"), target="y")
    assert population.class_names == ("-1", "9", "10", "100")
    assert population.examples.y.tolist() == [2, 1, 3, 0]


def test_the_tables_of_a_folder_are_one(tmp_path):
    """In the order of their names; columns by name; hidden files are left out."""
    (tmp_path / "2.csv").write_text("y,b,a\nm,4,3\n")
    (tmp_path / "1.csv").write_text("a,b,y\n1,2,n\n")
    (tmp_path / "._1.csv").write_bytes(b"\x00\x05")
    (tmp_path / ".DS_Store").write_bytes(b"\x00")
    population = _load("csv", file=str(tmp_path), target="y")
    assert population.examples.x.tolist() == [[1, 2], [3, 4]]
    (tmp_path / "3.csv").write_text("a,c,y\n1,2,n\n")
    with pytest.raises(UsageError, match=r"a column 'b' in .*3\.csv"):
        _load("csv", file=str(tmp_path), target="y")


# ---- shards and LEAF -----------------------------------------------------------------------------


def _npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def _shard(file, members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    file.write_bytes(out.getvalue())


GOOD = [("a.npy", _npy(np.ones(2))), ("a.cls", b"0"), ("b.npy", _npy(np.ones(2))), ("b.cls", b"1")]


def test_a_shard_that_ends_between_two_examples_is_refused(tmp_path):
    """A download that was cut off there had fewer examples, without a word."""
    _shard(tmp_path / "a.tar", GOOD)
    whole = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(whole[:2048])
    with pytest.raises(UsageError, match="without its end"):
        _load("webdataset", folder=str(tmp_path))
    (tmp_path / "a.tar").write_bytes(whole)
    (tmp_path / "._a.tar").write_bytes(b"\x00")
    assert _load("webdataset", folder=str(tmp_path)).examples.y.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([GOOD[0], GOOD[0], GOOD[1]], r"one member \.npy of /a .*got two"),
        ([GOOD[0], GOOD[2], GOOD[1], GOOD[3]], r"a member \.cls of /a"),
        ([GOOD[0], ("a.cls", b"9" * 30)], "cannot be read"),
    ],
)
def test_a_bad_shard_is_refused(tmp_path, members, message):
    _shard(tmp_path / "a.tar", members)
    with pytest.raises(UsageError, match=message):
        _load("webdataset", folder=str(tmp_path), clients=1)


def test_values_of_shards_that_are_not_finite_are_reported(tmp_path):
    """With the place, also from the cache; one is too large for float32."""
    odd = _npy(np.array([1.0, np.nan]))
    _shard(tmp_path / "a.tar", [*GOOD, ("c.npy", odd), ("c.cls", b"0"), ("._c.npy", b"\x00")])
    for _ in range(2):
        flaws = _load("webdataset", folder=str(tmp_path)).flaws
        assert flaws == ("1 of 6 values of the inputs, the first nan at [2, 1]",)
    _shard(tmp_path / "a.tar", [("a.npy", _npy(np.array([1e300]))), GOOD[1]])
    assert "1e+300 at [0, 0]" in _load("webdataset", folder=str(tmp_path), clients=1).flaws[0]


def test_leaf_without_tests_or_with_hidden_files_is_read(tmp_path):
    """A folder train alone is enough; test images of another size are refused."""

    def write(part, name, side):
        (tmp_path / part).mkdir(exist_ok=True)
        user = {"x": [[0.5] * side**2], "y": [3]}
        document = {"users": [name], "num_samples": [1], "user_data": {name: user}}
        (tmp_path / part / "a.json").write_text(json.dumps(document))
        (tmp_path / part / "._a.json").write_bytes(b"\x00\x05")

    write("train", "joe", 28)
    assert _load("leaf", task="femnist", folder=str(tmp_path), clients=None).names == ["joe"]
    write("test", "eve", 28)
    assert len(_load("leaf", task="femnist", folder=str(tmp_path), clients=None).test) == 1
    write("test", "eve", 128)
    with pytest.raises(UsageError, match=r"test inputs of shape \(1, 28, 28\)"):
        _load("leaf", task="femnist", folder=str(tmp_path), clients=None)
