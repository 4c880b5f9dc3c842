"""The container format: compatible with the `safetensors` library, and invalid files refused."""

import hashlib
import io
import json

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fedloom.protocol.errors import Code, IntegrityError, Refusal, UsageError
from fedloom.protocol.tensors import container
from fedloom.protocol.tensors.container import (
    DTYPES,
    TensorEntry,
    build_header,
    narrow,
    parse_header,
    read_params,
    widen,
    write_file,
    write_params,
)

NUMPY = sorted(set(DTYPES) - {"BF16"})
NAMES = st.text(st.characters(codec="utf-8"), max_size=12).filter(lambda n: n != "__metadata__")
SHAPES = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def arrays(draw):
    """An array of any dtype that both numpy and the container have, with any bits."""
    return draw(npst.arrays(DTYPES[draw(st.sampled_from(NUMPY))], draw(SHAPES)))


def same(a, b):
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


# ---- compatibility with the library --------------------------------------------------------------


@given(st.dictionaries(NAMES, arrays(), max_size=5))
def test_the_library_reads_our_files(params):
    """Every dtype, shape, name and bit."""
    file = io.BytesIO()
    digest = write_params(file, params)
    raw = file.getvalue()
    assert digest == hashlib.sha256(raw).hexdigest()
    loaded = safetensors.numpy.load(raw)
    assert loaded.keys() == params.keys()
    assert all(same(loaded[name], array) for name, array in params.items())


@given(st.dictionaries(NAMES, arrays(), max_size=5), st.booleans())
def test_files_of_the_library_are_read(tmp_path_factory, params, metadata):
    """With metadata or without."""
    path = tmp_path_factory.getbasetemp() / "library.safetensors"
    raw = safetensors.numpy.save(params, {"made by": "a test"} if metadata else None)
    path.write_bytes(raw)
    loaded = read_params(path)
    assert loaded.keys() == params.keys()
    assert all(same(np.asarray(loaded[name]), array) for name, array in params.items())


@given(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=40))
def test_bfloat16_agrees_with_torch_both_ways(tmp_path_factory, bits):
    """Every bfloat16 is read as its float32 value, and written as by torch."""
    torch = pytest.importorskip("torch")
    load = pytest.importorskip("safetensors.torch")
    torch.set_num_threads(1)
    path = tmp_path_factory.getbasetemp() / "bfloat16.safetensors"
    tensor = torch.tensor(bits, dtype=torch.uint16).view(torch.bfloat16)
    path.write_bytes(load.save({"x": tensor}))
    read = np.asarray(read_params(path)["x"])
    assert same(read, tensor.float().numpy())
    finite = read[np.isfinite(read)]
    write_file(path, {"x": finite}, {"x": "BF16"})
    back = load.load(path.read_bytes())["x"]
    assert back.dtype is torch.bfloat16
    assert same(back.float().numpy(), finite)


@given(npst.arrays(np.float32, st.integers(1, 40)))
def test_narrowing_rounds_to_the_nearest_as_torch_does(values):
    """float32 becomes the nearest bfloat16, ties to even; NaN stays NaN and infinity itself."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    ours = widen(narrow(values, "BF16"), "BF16")
    theirs = torch.from_numpy(values.copy()).to(torch.bfloat16).float().numpy()
    numbers = ~np.isnan(values)
    assert ours[numbers].tobytes() == theirs[numbers].tobytes()
    assert np.isnan(ours[~numbers]).all()


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype_survives_a_round_trip(tmp_path, dtype):
    """Empty, scalar and unaligned tensors of each dtype."""
    path = tmp_path / "x.safetensors"
    kind = np.float32 if dtype == "BF16" else DTYPES[dtype]
    params = {
        "empty": np.zeros((0, 3), kind),
        "scalar": np.ones((), kind),
        "odd": np.ones(3, kind),
        "bytes": np.arange(5, dtype=np.uint8),
    }
    digest = write_file(path, params, dict.fromkeys(("empty", "scalar", "odd"), dtype))
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    for loaded in (read_params(path), read_params(path, writable=True)):
        assert loaded.keys() == params.keys()
        for name, array in params.items():
            assert same(np.asarray(loaded[name]), array)
    stored = dict(safetensors.deserialize(path.read_bytes()))
    assert stored["odd"]["dtype"] == dtype


def test_writable_arrays_do_not_change_the_file(tmp_path):
    """A client's changes to its copy of the model stay in memory."""
    path = tmp_path / "x.safetensors"
    write_file(path, {"x": np.zeros(4, np.float32)})
    before = path.read_bytes()
    read_params(path, writable=True)["x"][:] = 7
    assert path.read_bytes() == before


def test_big_endian_arrays_are_written_little_endian(tmp_path):
    path = tmp_path / "x.safetensors"
    write_file(path, {"x": np.array([1, 2], ">f4")})
    np.testing.assert_array_equal(read_params(path)["x"], [1, 2])


def test_dtypes_outside_the_format_are_a_usage_error(tmp_path):
    """Complex numbers and objects cannot be stored."""
    for array in (np.zeros(2, np.complex64), np.array(["x"])):
        with pytest.raises(UsageError, match="Expected a dtype"):
            write_file(tmp_path / "x.safetensors", {"x": array})


# ---- untrusted bytes ----------------------------------------------------------------------------


def accepted(header):
    """The layout, or None for a refusal; anything else that is raised fails the test."""
    code, layout = None, None
    try:
        layout = parse_header(header)
    except Refusal as refusal:
        code = refusal.code
        str(refusal).encode()
    assert code in (None, Code.MALFORMED, Code.DUPLICATE_TENSOR, Code.WRONG_DTYPE)
    return layout


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
NUMBERS = st.integers(-2, 40) | st.integers() | st.booleans() | st.floats()


@st.composite
def nearly_headers(draw):
    """Objects like a header, with any of their parts invalid."""
    entry = st.fixed_dictionaries(
        {},
        optional={
            "dtype": st.sampled_from(["F32", "U8", "F64", "BOOL", "F8", "\ud800"]) | JSON,
            "shape": st.lists(NUMBERS, max_size=3) | JSON,
            "data_offsets": st.lists(NUMBERS, max_size=3) | JSON,
            "more": JSON,
        },
    )
    names = st.sampled_from(["a", "b", "__metadata__", ""])
    return json.dumps(draw(st.dictionaries(names, entry | JSON, max_size=3))).encode()


@pytest.mark.long
@given(st.binary(max_size=200) | nearly_headers() | JSON.map(lambda v: json.dumps(v).encode()))
@example(b'{"a":' + b"[" * 100_000)
@example(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1' + b"0" * 5000 + b"]}}")
@example(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,Infinity]}}')
@example(b"\x00" * 8)
@settings(max_examples=400)
def test_parser_accepts_or_refuses_any_bytes(header):
    """The result is a layout or a typed refusal that can be sent."""
    accepted(header)


@pytest.mark.parametrize("depth", [*range(940, 1000), 5000])
@pytest.mark.parametrize("pair", [b"[]", b"{}"])
def test_nesting_around_the_recursion_limit_is_refused(depth, pair):
    """With a typed refusal, also just below the limit."""
    opening = pair[:1] if pair == b"[]" else b'{"x":'
    header = b'{"a":' + opening * depth + b"1" + pair[1:] * depth + b"}"
    assert accepted(header) is None


@st.composite
def tampered(draw):
    """A valid header with one piece of its text replaced."""
    entries = [
        TensorEntry(name, draw(st.sampled_from(sorted(DTYPES))), tuple(draw(SHAPES)))
        for name in draw(st.lists(NAMES, max_size=3, unique=True))
    ]
    raw = build_header(entries)[0][8:]
    start = draw(st.integers(0, len(raw)))
    stop = draw(st.integers(start, min(len(raw), start + 4)))
    return raw[:start] + draw(st.binary(max_size=4)) + raw[stop:]


@pytest.mark.long
@given(tampered())
@settings(max_examples=400)
def test_the_library_accepts_all_accepted_files(header):
    """The parser is never laxer than the library, and sees the same tensors."""
    layout = accepted(header)
    if layout is None:
        return
    size = layout.size_bytes - layout.data_start
    raw = len(header).to_bytes(8, "little") + header + bytes(size)
    theirs = dict(safetensors.deserialize(raw))
    assert theirs.keys() == layout.tensors.keys()
    for name, info in layout.tensors.items():
        assert (theirs[name]["dtype"], tuple(theirs[name]["shape"])) == (info.dtype, info.shape)


@given(st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), SHAPES), max_size=6))
def test_headers_that_are_built_parse_to_their_own_layout(entries):
    """Every tensor is aligned, without gaps."""
    raw, layout = build_header(
        TensorEntry(f"{n}", dtype, shape) for n, (dtype, shape) in enumerate(entries)
    )
    assert layout == parse_header(raw[8:])
    assert layout.data_start == len(raw)
    assert layout.data_start % 8 == 0
    position = 0
    for info in layout.tensors.values():
        assert info.start == position
        assert info.start % DTYPES[info.dtype].itemsize == 0
        position = info.stop
    assert layout.size_bytes == layout.data_start + position


def test_finding_a_repeated_name_takes_linear_time():
    """A hundred thousand names with one repeated at the end are refused without delay."""
    text = ",".join(f'"{n}":0' for n in range(100_000))
    with pytest.raises(Refusal) as caught:
        parse_header(f'{{{text},"99999":0}}'.encode())
    assert caught.value.code is Code.DUPLICATE_TENSOR


def test_a_kept_layout_cannot_be_changed_and_a_refused_header_is_refused_again():
    """Short headers are kept with their layouts, which all readers share; a long one is not."""
    raw, _ = build_header([TensorEntry("w", "F32", (3,))])
    layout = parse_header(raw[8:])
    assert parse_header(bytes(bytearray(raw[8:]))) is layout
    with pytest.raises(TypeError):
        layout.tensors["v"] = layout.tensors["w"]
    for _ in range(2):
        with pytest.raises(Refusal):
            parse_header(raw[8:].replace(b"F32", b"F99"))
    long, _ = build_header(TensorEntry(f"{n}", "F32", (3,)) for n in range(2000))
    assert parse_header(long[8:]) == parse_header(long[8:])
    assert parse_header(long[8:]) is not parse_header(long[8:])


@given(st.binary(max_size=64))
def test_an_invalid_container_file_is_an_integrity_error(tmp_path_factory, raw):
    """A stored file must have exactly its declared length."""
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(raw)
    try:
        with path.open("rb") as file:
            layout = container.read_layout(file)
    except IntegrityError:
        return
    assert layout.size_bytes == len(raw)


def test_a_file_of_another_length_is_an_integrity_error(tmp_path):
    path = tmp_path / "x.safetensors"
    write_file(path, {"x": np.arange(4.0)})
    raw = path.read_bytes()
    for damaged in (raw[:-1], raw + b"\0", raw[:20], raw[:4], b""):
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError):
            read_params(path)
