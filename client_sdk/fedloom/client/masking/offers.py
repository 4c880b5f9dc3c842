"""Checks of the offer of a masked task, before anything is trained.

A task that a device takes must be the same for all members: what differs would let a server read
one member's update from the sum.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from fedloom.client.masking.record import MaskedRecord, MaskedUpdate
from fedloom.client.owner.policy import MaskingPolicy, PolicyError
from fedloom.protocol.errors import Code, IntegrityError, Refusal
from fedloom.protocol.masking import MaskingFloors, terms_of
from fedloom.protocol.task_description import TaskDescription, name_in_tree, task_seed
from fedloom.protocol.task_message import from_message
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies.exact.fixed_point import EXPONENT_LIMIT
from fedloom.strategies.exact.grid import SUM_BITS
from fedloom.strategies.privacy.release import WITHIN

MAX_SESSION_S: Final = 86_400.0
MAX_METRICS: Final = 256
_END: Final = b"-----END PUBLIC KEY-----"


def objection(
    offer: fleet_pb2.Task, *, client: str, federation: str, policy: MaskingPolicy, directory: Path
) -> str | None:
    """Return why the offer of a masked task is declined; None to take it.

    Args:
        offer: with `masking` set.
        client: this client's name.
        federation: of its certificate; empty without TLS.
        policy: of the device's owner.
        directory: of the client's state.
    """
    if not federation:
        return "a masked task needs TLS: without certificates, a server could pose as all members."
    try:
        _check(offer, client, federation)
        floors = floors_of(policy)
    except (Refusal, PolicyError) as error:
        return f"{error}"
    if offer.masking.group < floors.min_group:
        return (
            f"the device's policy requires sessions of at least {floors.min_group} members "
            f"(masking.min_group); those of this run have at most {offer.masking.group}."
        )
    update, record = MaskedUpdate.of(offer, federation), MaskedRecord(directory)
    try:
        return record.objection(update, policy.repeats)
    except IntegrityError as error:
        return f"{error}"


def floors_of(policy: MaskingPolicy) -> MaskingFloors:
    """Return the least that the device's owner accepts.

    Raises:
        PolicyError: the file of peers cannot be read.
    """
    peers = None if policy.peers == "any" else _public_keys(Path(policy.peers))
    return MaskingFloors(min_group=policy.min_group, min_ready=policy.min_ready, peers=peers)


def _public_keys(path: Path) -> frozenset[bytes]:
    """The public keys of a PEM file, as DER SubjectPublicKeyInfo."""
    try:
        found = [
            load_pem_public_key(each + _END).public_bytes(
                Encoding.DER, PublicFormat.SubjectPublicKeyInfo
            )
            for each in path.read_bytes().split(_END)[:-1]
        ]
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise PolicyError(
            f"the device's policy lists members in {path} (masking.peers), which cannot be read: "
            f"{error}."
        ) from error
    if not found:
        raise PolicyError(
            f"the device's policy lists members in {path} (masking.peers), which has no public key."
        )
    return frozenset(found)


def _check(offer: fleet_pb2.Task, client: str, federation: str) -> None:
    """Check the terms of a masked task.

    Raises:
        Refusal: MASKING_REFUSED; the message names the field.
    """
    masking, train = offer.masking, offer.train
    name = name_in_tree(masking.site, client)
    checks: tuple[tuple[str, Callable[[], bool], object], ...] = (
        ("a task to train or evaluate", lambda: offer.kind in _KINDS, offer.kind),
        (f"sum_bits of {SUM_BITS}", lambda: masking.sum_bits in SUM_BITS, masking.sum_bits),
        (
            f"an exponent to {EXPONENT_LIMIT}",
            lambda: abs(masking.exponent) <= EXPONENT_LIMIT,
            masking.exponent,
        ),
        ("max_examples >= 1", lambda: masking.max_examples >= 1, masking.max_examples),
        (
            f"session_s in (0, {MAX_SESSION_S:g}]",
            lambda: 0 < masking.session_s <= MAX_SESSION_S,
            masking.session_s,
        ),
        (f"at most {MAX_METRICS} metrics", lambda: len(masking.metrics) <= MAX_METRICS, "more"),
        (
            "finite bounds of metrics above 0",
            lambda: all(math.isfinite(each) and each > 0 for each in masking.metrics.values()),
            dict(masking.metrics),
        ),
        ("limits", lambda: offer.HasField("limits"), "none"),
        ("no compression", lambda: not offer.compression.codec, offer.compression.codec),
        ("whole updates", lambda: not train.tensor_share, "a share of them"),
        (
            "the seed that follows from masking.run_seed, masking.site and this client's name",
            lambda: offer.seed == task_seed(masking.run_seed, offer.key.round, name),
            offer.seed,
        ),
    )
    for expected, holds, got in checks:
        if not holds():
            raise Refusal(Code.MASKING_REFUSED, f"Expected {expected} in a masked task, got {got}.")
    _check_noise(from_message(offer))
    terms_of(offer, federation)


def _check_noise(asked: TaskDescription) -> None:
    """Check that the noise of a session is that of all that an update adds to its sum.

    A weight would make an update longer than its clip, and nothing clips scalars.

    Raises:
        Refusal: MASKING_REFUSED.
    """
    private = asked.privacy
    if private is None:
        return
    beside = [*asked.rule.scalars, *([WITHIN] if private.count_within else [])]
    if asked.weighting != "uniform" or beside:
        raise Refusal(
            Code.MASKING_REFUSED,
            "Expected uniform weights and no numbers beside tensors in a masked task with "
            f"[privacy], whose noise is that of clipped updates, got weights by {asked.weighting}"
            f" and {', '.join(beside) or 'no numbers'}.",
        )


_KINDS: Final = (fleet_pb2.TASK_KIND_TRAIN, fleet_pb2.TASK_KIND_EVALUATE)
