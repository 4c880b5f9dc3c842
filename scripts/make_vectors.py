#!/usr/bin/env python3
"""Makes the test vectors of the wire format, tests/protocol/vectors/*.json; `--check` compares.

They are for whoever writes a client in another language: bytes are hex, and everything that goes
into them is beside them. docs/protocol.md explains what they show; tests/protocol/test_vectors.py
recomputes them by other means.
"""

import argparse
import hashlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from numpy.typing import NDArray

from fedloom.protocol import masking
from fedloom.protocol.codecs import codec
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.manifest import Manifest, read_manifest
from fedloom.protocol.masking import encoding, keys, shamir, statements
from fedloom.protocol.task_description import task_seed
from fedloom.protocol.tensors.container import read_params, write_params
from fedloom.protocol.transport import methods
from fedloom.protocol.trust import identity, signing, tokens
from fedloom.protocol.trust.signed_bytes import to_sign
from fedloom.protocol.updates.addends import add_update
from fedloom.protocol.updates.compression import describe, encode
from fedloom.protocol.updates.message import TensorPart, write_body
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import DELTA, FedAvg, Full, Mask, Partial, Slice, TensorSpec, exponent

FOLDER = Path(__file__).parents[1] / "tests" / "protocol" / "vectors"

RUN = "digits-0a1b2c"
MODEL: dict[str, NDArray[Any]] = {
    "weight": np.array([[0.5, -1.25, 3.0], [0.0, 2.0, -0.125]], np.float32),
    "bias": np.array([1.0, -2.0, 0.25], np.float32),
    "scale": np.array(1.5, np.float32),
    "steps": np.array(7, np.int64),
}
DTYPES = {"scale": "BF16"}


def model() -> dict[str, Any]:
    """A model of four tensors, one of them bfloat16 and one an integer."""
    file = io.BytesIO()
    digest = write_params(file, MODEL, DTYPES)
    return {
        "tensors": {
            name: {
                "dtype": DTYPES.get(name, {"f": "F32", "i": "I64"}[array.dtype.kind]),
                "shape": list(array.shape),
                "values": array.tolist(),
            }
            for name, array in MODEL.items()
        },
        "bytes": file.getvalue().hex(),
        "sha256": digest,
    }


def first_parts() -> list[TensorPart]:
    """All of `weight` and `steps`, and two values of `bias` by a mask."""
    return [
        TensorPart(
            DELTA, "weight", Full(), np.array([[0.1, -0.2, 0.3], [0.25, -0.5, 1.0]], np.float32)
        ),
        TensorPart(DELTA, "bias", Mask(np.array([True, False, True])), _floats(0.5, -0.75)),
        TensorPart(DELTA, "steps", Full(), np.array(2.0, np.float64)),
    ]


def second_parts() -> list[TensorPart]:
    """A box of `weight` and a scalar."""
    box = Slice(((0, 2), (1, 3)))
    return [
        TensorPart(DELTA, "weight", box, np.array([[1.0, 2.0], [-1.0, 0.1]], np.float32)),
        TensorPart(DELTA, "scale", Full(), np.array(-0.375, np.float32)),
    ]


def _floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def update(
    directory: Path, client: str, parts: list[TensorPart], num_examples: int, manifest: Manifest
) -> tuple[fleet_pb2.UpdateHeader, bytes]:
    """The header and the body of an update."""
    path = directory / client
    described, size, checksum = write_body(path, parts, manifest)
    header = fleet_pb2.UpdateHeader(
        task=fleet_pb2.TaskKey(run=RUN, round=3),
        client=client,
        model_digest=model()["sha256"],
        size_bytes=size,
        crc32c=checksum,
        weight=num_examples,
        parts=described,
        training=fleet_pb2.Metrics(num_examples=num_examples, values={"loss": 0.5}),
    )
    return header, path.read_bytes()


def _described(part: TensorPart) -> dict[str, Any]:
    covered: dict[str, Any]
    match part.coverage:
        case Full():
            covered = {"full": {}}
        case Slice(ranges):
            covered = {"slice": [list(pair) for pair in ranges]}
        case Mask(bits):
            covered = {"mask": [int(bit) for bit in bits]}
    values = part.values.reshape(-1).tolist()
    return {"group": part.group, "tensor": part.tensor, "coverage": covered, "values": values}


def updates(directory: Path, manifest: Manifest) -> dict[str, Any]:
    """Two updates: the header that goes first, the body that follows, and its checksum."""
    made = {}
    for client, parts, num_examples in (
        ("calm-heron-27", first_parts(), 3),
        ("swift-otter-5", second_parts(), 5),
    ):
        header, body = update(directory, client, parts, num_examples, manifest)
        made[client] = {
            "parts": [_described(part) for part in parts],
            "task": {"run": RUN, "round": 3},
            "num_examples": num_examples,
            "loss": 0.5,
            "header": header.SerializeToString(deterministic=True).hex(),
            "body": body.hex(),
            "size_bytes": len(body),
            "crc32c": f"{crc32c(body):08x}",
        }
    return {"model_sha256": model()["sha256"], "updates": made}


def sums(directory: Path, manifest: Manifest) -> dict[str, Any]:
    """What folding the two updates gives, and the model that FedAvg makes of it."""
    total = Partial(
        {(DELTA, name): spec for name, spec in manifest.specs.items()},
        exponent(max_abs=4.0, max_weight_sum=1024.0),
    )
    for client, parts, num_examples in (
        ("calm-heron-27", first_parts(), 3),
        ("swift-otter-5", second_parts(), 5),
    ):
        header, _ = update(directory, client, parts, num_examples, manifest)
        add_update(total, directory / client, header)
    params = read_params(_model_file(directory))
    strategy = FedAvg()
    new, _ = strategy.finish(strategy.init(params), params, _copy(total))
    file = io.BytesIO()
    digest = write_params(file, new, manifest.dtypes)
    return {
        "means": {
            name: total.mean_block((DELTA, name), 0, spec.size)[0].tolist()
            for name, spec in manifest.specs.items()
        },
        "next_model": {name: array.tolist() for name, array in new.items()},
        "next_model_bytes": file.getvalue().hex(),
        "next_model_sha256": digest,
    }


def _copy(partial: Partial) -> Partial:
    return partial + partial.empty()


def _model_file(directory: Path) -> Path:
    path = directory / "model.safetensors"
    path.write_bytes(bytes.fromhex(model()["bytes"]))
    return path


CODECS: dict[str, dict[str, object]] = {
    "fp16": {},
    "bf16": {},
    "int8": {"block": 16},
    "int4": {"block": 16},
    "top_k": {"fraction": 0.1},
    "top_k with bits": {"fraction": 0.4},
    "random_k": {"fraction": 0.1, "scaled": True},
    "low_rank": {"rank": 1},
    "lossless": {},
}


def codecs(directory: Path) -> dict[str, Any]:
    """The same values by every codec, as one part of an update."""
    shape = (8, 13)
    places = np.arange(104)
    values = ((places * 37 % 101 - 50) / 64 * np.exp2(-(places % 7))).astype(np.float32)
    spec = TensorSpec(shape=shape, dtype=np.dtype(np.float32))
    manifest = Manifest(dtypes={"weight": "F32"}, specs={"weight": spec}, size_bytes=0)
    made: dict[str, Any] = {}
    for name, settings in CODECS.items():
        method = codec(name.split()[0], settings)
        coded = encode(method, values, shape, task_seed=7, key=(DELTA, "weight"))
        path = directory / "encoded"
        part = TensorPart(DELTA, "weight", Full(), values.reshape(shape), coded=coded)
        described, size, checksum = write_body(path, [part], manifest)
        header = fleet_pb2.UpdateHeader(
            size_bytes=size, crc32c=checksum, parts=described, compression=describe(method)
        )
        made[name] = {
            "settings": method.settings(),
            "header": header.SerializeToString(deterministic=True).hex(),
            "body": path.read_bytes().hex(),
            "decoded": [float(value) for value in coded.decode()],
        }
    return {"shape": list(shape), "values": [float(value) for value in values], "codecs": made}


def messages() -> dict[str, Any]:
    """Small messages, by themselves."""
    hello = fleet_pb2.Hello(
        protocol_versions=[3], client="calm-heron-27", sdk_version="x/1", nonce=bytes(range(32))
    )
    key = fleet_pb2.TaskKey(run=RUN, round=3)
    made = {
        "ClientMessage hello": fleet_pb2.ClientMessage(hello=hello),
        "ClientMessage offer_reply": fleet_pb2.ClientMessage(
            offer_reply=fleet_pb2.OfferReply(task=key, accepted=True)
        ),
        "DownloadRequest": fleet_pb2.DownloadRequest(digest=model()["sha256"], offset=64),
        "UploadReply proceed from 0": fleet_pb2.UploadReply(proceed=fleet_pb2.Proceed()),
        "UploadReply proceed from 4096": fleet_pb2.UploadReply(
            proceed=fleet_pb2.Proceed(offset=4096)
        ),
        "UploadReply accepted": fleet_pb2.UploadReply(accepted=fleet_pb2.Accepted()),
        "UploadReply accepted, repeated": fleet_pb2.UploadReply(
            accepted=fleet_pb2.Accepted(repeated=True)
        ),
    }
    ((key_name, value),) = methods.refusal_metadata(
        Refusal(Code.NOT_FINITE, "Expected finite values.")
    )
    return {
        "messages": {
            name: m.SerializeToString(deterministic=True).hex() for name, m in made.items()
        },
        "refusal": {
            "metadata_key": key_name,
            "code": "not_finite",
            "message": "Expected finite values.",
            "bytes": value.hex(),
        },
    }


def identities() -> dict[str, Any]:
    """A token's text form, and the name in a certificate."""
    token = tokens.Token(id="0f3a9c21", secret=bytes(range(32)), pin=bytes(range(32, 64)))
    return {
        "token": {
            "id": token.id,
            "secret": token.secret.hex(),
            "root_pin": token.pin.hex(),
            "text": token.text(),
            "stored_hash": tokens.secret_hash(token.secret),
        },
        "spiffe": {
            "federation": "hospitals.example",
            "client": "calm-heron-27",
            "uri": identity.spiffe_uri("hospitals.example", "calm-heron-27"),
        },
        "root_pin_of_der": {
            "der": b"the DER form of a root".hex(),
            "sha256": hashlib.sha256(b"the DER form of a root").hexdigest(),
        },
    }


def signatures() -> dict[str, Any]:
    """A signed offer, from the secret key on; the same key after another took its place."""
    first = signing.Signer(bytes(range(32)))
    second = first.successor(bytes(range(32, 64)))
    task = fleet_pb2.Task(
        key=fleet_pb2.TaskKey(run=RUN, round=3),
        kind=fleet_pb2.TASK_KIND_TRAIN,
        model=fleet_pb2.ModelRef(digest=model()["sha256"], size_bytes=512),
        deadline_s=600.0,
    )
    to = signing.Addressee("hospitals.example", "calm-heron-27", bytes(range(32)))
    made = {}
    for name, signer in (("first", first), ("second", second)):
        offer = signing.signed_offer(signer, to, task, 1_790_000_000_000_000)
        made[name] = {
            "secret": signer.private.hex(),
            "public": signer.public.hex(),
            "purpose": signing.TASK,
            "federation": to.federation,
            "client": to.client,
            "nonce": to.nonce.hex(),
            "issued_us": "1790000000000000",
            "task": task.SerializeToString(deterministic=True).hex(),
            "statement": offer.statement.hex(),
            "signed": signing.to_sign(signing.TASK, offer.statement).hex(),
            "signature": offer.signature.signature.hex(),
            "chain": [
                {"by": w.by.hex(), "key": w.key.hex(), "signature": w.signature.hex()}
                for w in offer.signature.chain
            ],
            "ServerMessage": fleet_pb2.ServerMessage(signed_offer=offer)
            .SerializeToString(deterministic=True)
            .hex(),
        }
    return {"offers": made}


def secagg() -> dict[str, Any]:
    """Masking sessions: each function by itself, then three whole sessions."""
    pid, sid, key = (bytes([i]) * 32 for i in (1, 2, 3))
    task = fleet_pb2.Task(
        key=fleet_pb2.TaskKey(run=RUN, round=3),
        kind=fleet_pb2.TASK_KIND_TRAIN,
        model=fleet_pb2.ModelRef(digest="ab", size_bytes=512),
        train=fleet_pb2.TrainSettings(epochs=2, learning_rate=0.1, only=["head.*", "tail"]),
        config={
            "b": fleet_pb2.Scalar(bool_value=False),
            "a": fleet_pb2.Scalar(double_value=-0.5),
            "é": fleet_pb2.Scalar(string_value="x"),
        },
        deadline_s=600.0,
        seed=7,
    )
    terms = {"sum_bits": 32, "exponent": -3, "group": 64, "run_seed": 2**64 - 1}
    core = masking.task_core(task, **terms, metrics={"loss": 8.0, "accuracy": 1.0})
    coefficients = [5, 2**255, shamir.PRIME - 1]
    nonces = {f"client-{i}": bytes([i]) * 32 for i in range(7)}
    stream = np.zeros(8 * 2**20 + 8, np.uint8)
    layout = masking.BodyLayout(sum_bits=64, num_values=len(stream) // 8, num_words=0)
    masking.apply_streams(stream, layout, [masking.MaskStream(key, 1)])
    return {
        "digest": encoding.digest("label", b"bytes", "text", 5, -1, 0.5).hex(),
        "bitmap": {
            "members": [0, 3, 9],
            "size": 10,
            "bytes": encoding.to_bitmap({0, 3, 9}, 10).hex(),
        },
        "core": {
            "task": task.SerializeToString(deterministic=True).hex(),
            **{name: str(value) for name, value in terms.items()},
            "metrics": {"loss": 8.0, "accuracy": 1.0},
            "core": core.hex(),
        },
        "pid": encoding.protocol_id("hospitals", RUN, 3, 1, core).hex(),
        "sid": encoding.session_id(pid, 1, [sid, key]).hex(),
        "seed": {
            "run_seed": "12345",
            "round": "3",
            "name": "calm-heron-27",
            "seed": str(task_seed(12345, 3, "calm-heron-27")),
        },
        "keys": {
            "seed": key.hex(),
            "pair_private": keys.pair_private(key, pid).private_bytes_raw().hex(),
            "self_mask_key": keys.self_mask_key(key, sid).hex(),
            "self_commitment": keys.self_commitment(pid, "calm-heron-27", key).hex(),
        },
        "stream": {
            "key": key.hex(),
            "words": [str(word) for word in stream[:64].view("<u8").tolist()],
            "word_2_20": str(stream[-8:].view("<u8").tolist()[0]),
        },
        "shamir": {
            "coefficients": [str(value) for value in coefficients],
            "shares": [str(shamir.polynomial(coefficients, x)) for x in range(1, 6)],
        },
        "statements": {
            "shared": [0, 1, 2, 4],
            "masked": [0, 2, 4],
            "size": 5,
            "agree": to_sign(
                statements.AGREE,
                statements.agree_digest(
                    sid, encoding.to_bitmap({0, 1, 2, 4}, 5), encoding.to_bitmap({0, 2, 4}, 5)
                ),
            ).hex(),
            "closed": to_sign(statements.CLOSED, statements.closed_digest(sid)).hex(),
        },
        "draw": {
            "nonces": {name: nonce.hex() for name, nonce in nonces.items()},
            "coverage": "0.5",
            "group": 3,
            "sessions": [list(s) for s in masking.draw_sessions(pid, "0.5", nonces, 3)],
        },
        "bodies": {str(bits): _masked_body(bits) for bits in (16, 24, 32, 64)},
        "sessions": [
            _masked_session(1, 16, shared=(0, 1, 3, 4), masked=(0, 1, 3, 4), revealed=(0, 1, 3, 4)),
            _masked_session(2, 24, shared=range(5), masked=(0, 2, 3, 4), revealed=(0, 2, 3, 4)),
            _masked_session(3, 32, shared=range(5), masked=range(5), revealed=(0, 1, 2, 3)),
        ],
    }


def _masked_body(bits: int) -> dict[str, Any]:
    """A body of seven values and two words, and the same under two masks."""
    most = 2 ** (bits - 1)
    values, words = [0, 1, -1, most - 1, -most, 12345, -12345], [2**62, -5]
    layout = masking.BodyLayout(sum_bits=bits, num_values=7, num_words=2)
    body = masking.write_body(layout, [np.array(values, np.int64)], words)
    plain = body.tobytes().hex()
    streams = [masking.MaskStream(bytes([7]) * 32, 1), masking.MaskStream(bytes([8]) * 32, -1)]
    masking.apply_streams(body, layout, streams)
    return {
        "values": [str(value) for value in values],
        "words": [str(word) for word in words],
        "plain": plain,
        "added": streams[0].key.hex(),
        "subtracted": streams[1].key.hex(),
        "masked": body.tobytes().hex(),
    }


def _random(name: str) -> shamir.Random:
    """Bytes of SHA-256(name ‖ 0), SHA-256(name ‖ 1), …: the byte strings one after the other."""
    blocks = (hashlib.sha256(name.encode() + bytes([i])).digest() for i in range(256))
    stream = io.BytesIO(b"".join(blocks))
    return stream.read


def _masked_session(
    attempt: int, bits: int, shared: Iterable[int], masked: Iterable[int], revealed: Iterable[int]
) -> dict[str, Any]:
    """A whole session of five members, of whom one drops out: every secret, and every message."""
    names = [f"client-{i}" for i in range(5)]
    terms = masking.RoundTerms(
        federation="hospitals", run=RUN, round=3, attempt=attempt, core=bytes([9]) * 32, group=64
    )
    private = {
        name: ec.derive_private_key(1000 + i, ec.SECP256R1()) for i, name in enumerate(names)
    }
    members = [
        masking.Member(
            terms,
            name=name,
            serial=f"{i:040x}",
            sign=_fixed_signer(private[name]),
            floors=masking.MaskingFloors(min_group=3),
            random=_random(f"{name} {attempt}"),
        )
        for i, name in enumerate(names)
    ]

    def identify(advert: masking.Advert) -> masking.CertifiedKey:
        key = private[advert.name].public_key()
        return masking.CertifiedKey(name=advert.name, serial=advert.serial, key=key)

    adverts = [member.advert for member in members]
    dealt = [member.join(adverts, identify) for member in members]
    roster = members[0].roster
    assert roster is not None
    survivors = masking.Survivors(shared=frozenset(shared), masked=frozenset(masked))
    layout = masking.BodyLayout(sum_bits=bits, num_values=3, num_words=1)
    total = np.zeros(layout.size_bytes, np.uint8)
    bodies, plain = {}, {}
    for i in sorted(survivors.shared):
        mine = {j: dealt[j].shares[i] for j in survivors.shared - {i}}
        members[i].receive(survivors.shared, mine)
        body = masking.write_body(layout, [np.array([i, -100 * i, 7])], [i + 1])
        plain[i] = body.tobytes().hex()
        members[i].mask(body, layout)
        bodies[i] = body.tobytes().hex()
        if i in survivors.masked:
            masking.add_body(total, layout, body)
    signatures = {i: members[i].agree(survivors.masked) for i in sorted(survivors.masked)}
    reveals = {i: members[i].reveal(signatures) for i in revealed}
    found = masking.recover(roster, survivors, dict(enumerate(dealt)), reveals, {})
    masking.apply_streams(total, layout, masking.leftover_masks(roster, survivors, found.seeds))
    return {
        "federation": terms.federation,
        "run": terms.run,
        "round": terms.round,
        "attempt": attempt,
        "core": terms.core.hex(),
        "group": terms.group,
        "pid": terms.pid.hex(),
        "sid": roster.sid.hex(),
        "sum_bits": bits,
        "names": names,
        "signing_keys": [1000 + i for i in range(5)],
        "random": [f"{name} {attempt}" for name in names],
        "shared": sorted(survivors.shared),
        "masked": sorted(survivors.masked),
        "revealed": sorted(reveals),
        "adverts": [advert.to_bytes().hex() for advert in adverts],
        "shares": [each.to_bytes().hex() for each in dealt],
        "bodies": {str(i): {"plain": plain[i], "masked": bodies[i]} for i in bodies},
        "agreements": {str(i): signature.hex() for i, signature in signatures.items()},
        "reveals": {str(i): each.to_bytes(survivors).hex() for i, each in reveals.items()},
        "seeds": {str(i): seed.hex() for i, seed in sorted(found.seeds.items())},
        "sum": {
            "values": [str(v) for v in masking.read_values(layout, total, 0, 3).tolist()],
            "words": [str(word) for word in masking.read_words(layout, total)],
        },
    }


def _fixed_signer(key: ec.EllipticCurvePrivateKey) -> masking.Sign:
    """Signs as RFC 6979 says, so that vectors are the same each time; devices draw at random."""
    return lambda data: key.sign(data, ec.ECDSA(SHA256(), deterministic_signing=True))


def checksums() -> dict[str, Any]:
    """CRC-32C (Castagnoli) of a few strings; the second is its customary check value."""
    samples = (b"", b"123456789", bytes(32), bytes(range(256)))
    return {"crc32c": [{"bytes": data.hex(), "value": f"{crc32c(data):08x}"} for data in samples]}


def make() -> dict[str, dict[str, Any]]:
    """Every vector by file name."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        manifest = read_manifest(_model_file(directory))
        return {
            "model.json": model(),
            "updates.json": updates(directory, manifest),
            "sums.json": sums(directory, manifest),
            "codecs.json": codecs(directory),
            "messages.json": messages(),
            "identities.json": identities(),
            "signatures.json": signatures(),
            "checksums.json": checksums(),
            "secagg.json": secagg(),
        }


def text_of(vector: dict[str, Any]) -> str:
    """The file's form of a vector: indented, with lists of plain values on one line."""
    text = json.dumps(vector, indent=2)
    return re.sub(r"\[\s+([^][{}]*?)\s+\]", _one_line, text) + "\n"


def _one_line(match: re.Match[str]) -> str:
    return "[" + " ".join(match[1].split()) + "]"


def main() -> int:
    """Write the files, or say which have drifted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare with what is there")
    arguments = parser.parse_args()
    drifted = []
    for name, vector in make().items():
        path = FOLDER / name
        if not path.exists() or path.read_text() != text_of(vector):
            drifted.append(name)
            if not arguments.check:
                path.write_text(text_of(vector))
    for name in drifted:
        print(f"{'drifted' if arguments.check else 'written'}: {name}")
    return 1 if drifted and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
