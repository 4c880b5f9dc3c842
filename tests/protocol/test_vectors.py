"""The test vectors of the wire format: as the code makes them, and as they follow from the page.

The second half recomputes them without the code that made them, from what docs/protocol.md says,
as the author of a client in another language would.
"""

import base64
import hashlib
import importlib.util
import json
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import safetensors
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedloom.protocol.v1 import fleet_pb2

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "vectors"


def vector(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


def script():
    """scripts/make_vectors.py as a module."""
    path = ROOT / "scripts" / "make_vectors.py"
    spec = importlib.util.spec_from_file_location("make_vectors", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_vectors_match_the_code():
    """No file has drifted, is missing or is left over."""
    module = script()
    made = {name: module.text_of(vector) for name, vector in module.make().items()}
    there = {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert there == made


# ---- by other means -----------------------------------------------------------------------------


def crc32c_by_bits(data):
    """CRC-32C from its polynomial, a bit at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def contents(raw):
    """A container's tensors by name: (dtype, shape, bytes)."""
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    data = raw[8 + length :]
    tensors = {
        name: (entry["dtype"], tuple(entry["shape"]), data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }
    theirs = {n: (e["dtype"], tuple(e["shape"]), bytes(e["data"])) for n, e in library(raw)}
    assert tensors == theirs
    return tensors


def library(raw):
    return safetensors.deserialize(raw)


FORMATS = {"F32": "f", "F64": "d", "I64": "q"}


def numbers(dtype, raw):
    """The values of a tensor as Python numbers."""
    if dtype == "BF16":
        (bits,) = struct.unpack("<H", raw)
        return list(struct.unpack("<f", struct.pack("<I", bits << 16)))
    size = struct.calcsize(FORMATS[dtype])
    return list(struct.unpack(f"<{len(raw) // size}{FORMATS[dtype]}", raw))


@pytest.mark.parametrize("case", vector("checksums")["crc32c"], ids=lambda case: case["value"])
def test_checksums_are_castagnoli_s(case):
    assert f"{crc32c_by_bits(bytes.fromhex(case['bytes'])):08x}" == case["value"]


def test_model_matches_its_digest_and_values():
    model = vector("model")
    raw = bytes.fromhex(model["bytes"])
    assert hashlib.sha256(raw).hexdigest() == model["sha256"]
    tensors = contents(raw)
    assert tensors.keys() == model["tensors"].keys()
    for name, said in model["tensors"].items():
        dtype, shape, data = tensors[name]
        assert (dtype, list(shape)) == (said["dtype"], said["shape"])
        assert numbers(dtype, data) == np.ravel(said["values"]).tolist()


@pytest.mark.parametrize("client", vector("updates")["updates"])
def test_updates_match_their_description(client):
    """Header and body agree with each other, with their checksum, and with the parts listed."""
    update = vector("updates")["updates"][client]
    body = bytes.fromhex(update["body"])
    assert len(body) == update["size_bytes"]
    assert f"{crc32c_by_bits(body):08x}" == update["crc32c"]
    header = fleet_pb2.UpdateHeader.FromString(bytes.fromhex(update["header"]))
    assert (header.task.run, header.task.round) == (update["task"]["run"], update["task"]["round"])
    assert header.client == client
    assert header.model_digest == vector("model")["sha256"]
    assert (header.size_bytes, header.crc32c) == (len(body), int(update["crc32c"], 16))
    assert header.weight == header.training.num_examples == update["num_examples"]
    assert dict(header.training.values) == {"loss": update["loss"]}
    tensors = contents(body)
    named = set()
    for part, said in zip(header.parts, update["parts"], strict=True):
        assert (part.group, part.tensor) == (said["group"], said["tensor"])
        dtype, shape, data = tensors[part.values]
        assert numbers(dtype, data) == said["values"]
        named.add(part.values)
        kind, covered = next(iter(said["coverage"].items()))
        assert part.WhichOneof("coverage") == kind
        if kind == "slice":
            assert [[r.start, r.stop] for r in part.slice.ranges] == covered
            assert shape == tuple(stop - start for start, stop in covered)
        elif kind == "mask":
            dtype, bits_shape, bits = tensors[part.mask.bits]
            assert (dtype, bits_shape) == ("U8", (math.ceil(len(covered) / 8),))
            assert int.from_bytes(bits, "little") == sum(bit << i for i, bit in enumerate(covered))
            assert shape == (sum(covered),)
            named.add(part.mask.bits)
    assert named == tensors.keys()


def coordinates(coverage, shape):
    """The flat coordinates that a coverage lists values for, in order."""
    size = math.prod(shape)
    kind, covered = next(iter(coverage.items()))
    if kind == "full":
        return list(range(size))
    if kind == "mask":
        return [i for i in range(size) if covered[i]]
    box = tuple(slice(start, stop) for start, stop in covered)
    return np.arange(size).reshape(shape)[box].ravel().tolist()


def test_sums_and_the_next_model_follow_from_the_updates():
    """Value by value with Python's integers and floats, as documented."""
    said, model = vector("sums"), vector("model")["tensors"]
    s = 62 - math.ceil(math.log2(said["max_abs"] * said["max_weight_sum"]))
    assert s == said["exponent"]
    sums = {name: [0] * math.prod(t["shape"]) for name, t in model.items()}
    weights = {name: [0] * math.prod(t["shape"]) for name, t in model.items()}
    for client, update in vector("updates")["updates"].items():
        units = update["num_examples"] * 2**20
        assert units == said["weights"][client]
        for part in update["parts"]:
            shape = model[part["tensor"]]["shape"]
            where = coordinates(part["coverage"], shape)
            for i, x in zip(where, part["values"], strict=True):
                sums[part["tensor"]][i] += round(x * math.ldexp(units, s - 20))
                weights[part["tensor"]][i] += units
    after = contents(bytes.fromhex(said["next_model_bytes"]))
    digest = hashlib.sha256(bytes.fromhex(said["next_model_bytes"])).hexdigest()
    assert digest == said["next_model_sha256"]
    for name, tensor in model.items():
        entry = said["sums"][name]
        assert [int(v) for v in entry["sum"]] == sums[name]
        each = entry["weight_of_each"] or [0] * len(sums[name])
        assert [int(entry["weight_of_all"]) + int(v) for v in each] == weights[name]
        old = np.ravel(tensor["values"]).tolist()
        means = [a / math.ldexp(w, s - 20) if w else 0.0
                 for a, w in zip(sums[name], weights[name], strict=True)]  # fmt: skip
        new = [x + mean for x, mean in zip(old, means, strict=True)]
        if tensor["dtype"] == "F32":
            new = [struct.unpack("<f", struct.pack("<f", x))[0] for x in new]
        dtype, _, data = after[name]
        assert dtype == tensor["dtype"]
        assert numbers(dtype, data) == new == np.ravel(said["next_model"][name]).tolist()


def splitmix(seed, count):
    """The first outputs of SplitMix64."""
    mask, out = 2**64 - 1, []
    for number in range(1, count + 1):
        z = (seed + number * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        out.append(z ^ (z >> 31))
    return out


def single(value):
    """Rounded to float32."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def signed(nibble):
    return nibble - 16 if nibble & 8 else nibble


class Arrays:
    """An encoded part's arrays, and what else its values follow from."""

    def __init__(self, tensors, part, settings, shape):
        self.found = {role: tensors[f"{part.values}.{role}"] for role in part.encoding.arrays}
        self.settings, self.seed, self.shape = settings, part.encoding.seed, shape
        self.n = math.prod(shape)

    def take(self, role, kind):
        return [x for (x,) in struct.iter_unpack(f"<{kind}", self.found[role][2])]


def fp16(part):
    return part.take("values", "e")


def bf16(part):
    bits = part.take("values", "H")
    return [struct.unpack("<f", struct.pack("<I", b << 16))[0] for b in bits]


def int8(part):
    scales, block = part.take("scales", "f"), int(part.settings["block"])
    return [single(scales[i // block] * c) for i, c in enumerate(part.take("codes", "b"))]


def int4(part):
    half, codes, out = int(part.settings["block"]) // 2, part.take("codes", "B"), []
    for row, scale in enumerate(part.take("scales", "f")):
        here = codes[row * half : (row + 1) * half]
        whole = [signed(c & 15) for c in here] + [signed(c >> 4) for c in here]
        out += [single(scale * c) for c in whole]
    assert not any(out[part.n :])
    return out[: part.n]


def top_k(part):
    if "bits" in part.found:
        bits = int.from_bytes(part.found["bits"][2], "little")
        places = [i for i in range(part.n) if bits >> i & 1]
    else:
        kind = {"U8": "B", "U16": "H", "U32": "I"}[part.found["gaps"][0]]
        places = [int(p) - 1 for p in np.cumsum(part.take("gaps", kind))]
    out = [0.0] * part.n
    for place, value in zip(places, part.take("values", "f"), strict=True):
        out[place] = value
    return out


def random_k(part):
    values, n, out = part.take("values", "f"), part.n, [0.0] * part.n
    k = math.ceil(part.settings["fraction"] * n)
    for i, word in enumerate(splitmix(part.seed, k)):
        first, after = i * n // k, (i + 1) * n // k
        out[first + ((after - first) * (word >> 32) >> 32)] = values[i]
    return out


def low_rank(part):
    left, right, r = part.take("left", "f"), part.take("right", "f"), int(part.settings["rank"])
    out = []
    for i in range(part.shape[0]):
        for j in range(part.n // part.shape[0]):
            total = 0.0
            for c in range(r):
                total = single(total + single(left[i * r + c] * right[j * r + c]))
            out.append(total)
    return out


def lossless(part):
    (length,), data = part.take("lengths", "I"), part.found["data"][2]
    assert length == len(data)
    planes = data if length == 4 * part.n else zlib.decompress(data)
    return [struct.unpack("<f", bytes(planes[i :: part.n]))[0] for i in range(part.n)]


BY_THE_PAGE = {f.__name__: f for f in (fp16, bf16, int8, int4, top_k, random_k, low_rank, lossless)}


@pytest.mark.parametrize("name", vector("codecs")["codecs"])
def test_encoded_values_follow_from_the_page(name):
    """Each codec's arrays decode to the listed values, computed value by value in Python."""
    page, said = vector("codecs"), vector("codecs")["codecs"][name]
    header = fleet_pb2.UpdateHeader.FromString(bytes.fromhex(said["header"]))
    body = bytes.fromhex(said["body"])
    assert (header.size_bytes, header.crc32c) == (len(body), crc32c_by_bits(body))
    assert dict(header.compression.settings) == said["settings"]
    (part,) = header.parts
    tensors = contents(body)
    arrays = Arrays(tensors, part, said["settings"], page["shape"])
    assert len(arrays.found) == len(tensors)
    got = BY_THE_PAGE[header.compression.codec](arrays)
    assert got == said["decoded"]
    if name == "lossless":
        assert got == page["values"]


def test_token_and_its_hash_follow_from_their_parts():
    """Base64url without padding, joined by dots; the server keeps a plain SHA-256."""
    token = vector("identities")["token"]
    parts = [
        base64.urlsafe_b64encode(bytes.fromhex(token[name])).decode().rstrip("=")
        for name in ("secret", "root_pin")
    ]
    assert token["text"] == ".".join(["fl1", token["id"], *parts])
    assert hashlib.sha256(bytes.fromhex(token["secret"])).hexdigest() == token["stored_hash"]
    pin = vector("identities")["root_pin_of_der"]
    assert hashlib.sha256(bytes.fromhex(pin["der"])).hexdigest() == pin["sha256"]


def test_name_in_a_certificate_is_a_spiffe_uri():
    """The federation is the trust domain, the client the path's second part."""
    said = vector("identities")["spiffe"]
    assert said["uri"] == f"spiffe://{said['federation']}/client/{said['client']}"


def test_messages_parse_as_they_are_named():
    raw = {name: bytes.fromhex(value) for name, value in vector("messages")["messages"].items()}
    hello = fleet_pb2.ClientMessage.FromString(raw["ClientMessage hello"]).hello
    assert (list(hello.protocol_versions), hello.client) == ([2], "calm-heron-27")
    reply = fleet_pb2.ClientMessage.FromString(raw["ClientMessage offer_reply"]).offer_reply
    assert (reply.task.round, reply.accepted) == (3, True)
    request = fleet_pb2.DownloadRequest.FromString(raw["DownloadRequest"])
    assert (request.digest, request.offset) == (vector("model")["sha256"], 64)
    replies = {n: fleet_pb2.UploadReply.FromString(v) for n, v in raw.items() if "Upload" in n}
    assert replies["UploadReply proceed from 0"].WhichOneof("kind") == "proceed"
    assert replies["UploadReply proceed from 4096"].proceed.offset == 4096
    assert not replies["UploadReply accepted"].accepted.repeated
    assert replies["UploadReply accepted, repeated"].accepted.repeated
    said = vector("messages")["refusal"]
    refusal = fleet_pb2.Refusal.FromString(bytes.fromhex(said["bytes"]))
    assert (refusal.code, refusal.message) == (said["code"], said["message"])


@pytest.mark.parametrize("name", vector("signatures")["offers"])
def test_signatures_are_over_the_documented_bytes(name):
    """Ed25519 over context, purpose and statement; a chain starts at the first key."""
    said = vector("signatures")["offers"][name]
    statement = bytes.fromhex(said["statement"])
    told = fleet_pb2.OfferStatement.FromString(statement)
    assert (told.federation, told.client) == (said["federation"], said["client"])
    assert told.issued_us == int(said["issued_us"])
    assert told.task == bytes.fromhex(said["task"])
    signed = b"fedloom-signature-1\0" + said["purpose"].encode() + b"\0" + statement
    assert signed.hex() == said["signed"]
    assert ed25519(said["public"]).verify(bytes.fromhex(said["signature"]), signed) is None
    key = vector("signatures")["offers"]["first"]["public"]
    for word in said["chain"]:
        assert word["by"] == key
        over = b"fedloom-signature-1\0key\0" + bytes.fromhex(word["key"])
        assert ed25519(word["by"]).verify(bytes.fromhex(word["signature"]), over) is None
        key = word["key"]
    assert key == said["public"]
    message = fleet_pb2.ServerMessage.FromString(bytes.fromhex(said["ServerMessage"]))
    assert message.signed_offer.statement == statement
    assert message.signed_offer.task == fleet_pb2.Task.FromString(told.task).key


def ed25519(public):
    return Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
