"""The task of a client, as values: planning makes it, a client performs it.

`task_message` is its form on the wire. Invariant: nothing here needs protobuf.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, TypeAlias

from fedloom.protocol.task_kind import Kind
from fedloom.strategies import Adapters, ClientRule, Personal, RoundSettings

if TYPE_CHECKING:
    from fedloom.protocol.updates.compression import Scheme

Scalar: TypeAlias = bool | int | float | str

MAX_CONFIG: Final = 256
"""Most values for the client's code."""
MAX_CONFIG_NAME: Final = 256
"""Longest name of one, characters."""
MAX_CONFIG_TEXT: Final = 1 << 16
"""Longest text of one, characters."""

WEIGHTINGS: Final = ("examples", "client", "uniform")
"""Where the weight of an update comes from: number of examples, the client, or 1 for everyone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRef:
    """A file of the model store.

    Attributes:
        digest: SHA-256, which names it.
        size_bytes: of the file.
    """

    digest: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceRef:
    """An encoded difference between two models.

    Attributes:
        base: digest of the model from which it was computed.
        file: of the difference.
    """

    base: str
    file: FileRef


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBounds:
    """What the server accepts of an update.

    Attributes:
        max_abs: largest magnitude of a value.
        max_weight: largest weight.
        max_bytes: longest body.
        max_norm: largest norm of a masked update, which its device checks; None for any.
    """

    max_abs: float
    max_weight: float
    max_bytes: int
    max_norm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePrivacy:
    """What a device does for differential privacy.

    Attributes:
        clip: Euclidean norm to which the whole update is scaled down.
        count_within: also report whether the update was within the clip.
        noise_multiplier: standard deviation of the device's noise / clip; 0: none. In a masked task
            that of the noise of its session, of which the device adds a share.
        seeded: for simulation, derives the noise from the task's seed.
        in_session: whether the task is masked.
    """

    clip: float
    count_within: bool = False
    noise_multiplier: float = 0.0
    seeded: bool = False
    in_session: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMasking:
    """How the updates of a task are masked, the same for all members.

    Attributes:
        attempt: number of this try at masking the round, from 1.
        sum_bits: bits of a value in the sum.
        exponent: the step of the sum is 2^-exponent at weight 1.
        group: most members of a session.
        run_seed: from which each client's seed follows, `task_seed`; no server chooses one of them.
        metrics: metric → bound of its magnitude; no others are sent.
        max_examples: largest number of examples that counts for a metric.
        session_s: seconds after the roster in which a session ends.
        site: place of the server in a tree of sites, as "north/ward"; empty if it is no site.
    """

    attempt: int = 1
    sum_bits: int
    exponent: int
    group: int
    run_seed: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    max_examples: int
    session_s: float
    site: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDescription:
    """The task of a client in a round.

    Attributes:
        run: id of the run.
        round: number of the round, from 1.
        kind: of the task.
        model: from which the round starts, or the message; None if it is not a file.
        differences: that lead to `model`, oldest first.
        settings: of local training in this round.
        rule: client rule.
        evaluate: also evaluate the received model, before training.
        weighting: one of `WEIGHTINGS`.
        bounds: what the server accepts; None if not given.
        config: for the client's code.
        deadline_s: seconds left to report, from when the task is sent.
        seed: of the client's randomness.
        received: file that clients get beside the model.
        memory_round: last committed round with an update of this client; 0: none.
        scheme: encoding of updates; None: unencoded.
        personal: tensors that each client keeps.
        privacy: differential privacy; None: none.
        run_name: given by its author.
        adapters: what is averaged of low-rank adapters.
        training_round: number of the training round, from 1, without evaluation and abandoned
            rounds; of an evaluation round, that of the last committed training; 0: not known.
        masking: of the update; None: it is sent in clear.
    """

    run: str
    round: int
    kind: Kind = Kind.TRAIN
    model: FileRef | None = None
    differences: tuple[DifferenceRef, ...] = ()
    settings: RoundSettings
    rule: ClientRule
    evaluate: bool = False
    weighting: str = WEIGHTINGS[0]
    bounds: UpdateBounds | None = None
    config: Mapping[str, Scalar] = field(default_factory=dict)
    deadline_s: float = 0.0
    seed: int = 0
    received: FileRef | None = None
    memory_round: int = 0
    scheme: "Scheme | None" = None
    personal: Personal = field(default_factory=Personal)
    privacy: DevicePrivacy | None = None
    run_name: str = ""
    adapters: Adapters = field(default_factory=Adapters)
    training_round: int = 0
    masking: TaskMasking | None = None

    @property
    def train(self) -> bool:
        """Whether clients train."""
        return self.kind is Kind.TRAIN

    @property
    def evaluates(self) -> bool:
        """Whether clients evaluate the received model: as the task, or beside training."""
        return self.kind is Kind.EVALUATE or (self.train and self.evaluate)

    @property
    def receives(self) -> bool:
        """Whether clients get the tensors beside the model: to train, or to pick one of several."""
        return self.train or self.rule.picks


def check_config(config: Mapping[str, Scalar]) -> None:
    """Check that values for a client's code are few and short enough for any device.

    Raises:
        ValueError: the message names the limit.
    """
    if len(config) > MAX_CONFIG:
        raise ValueError(f"Expected at most {MAX_CONFIG} values in config, got {len(config)}.")
    for name, value in config.items():
        if len(name) > MAX_CONFIG_NAME:
            raise ValueError(
                f"Expected names of at most {MAX_CONFIG_NAME} characters in config, "
                f"got one of {len(name)}."
            )
        if isinstance(value, str) and len(value) > MAX_CONFIG_TEXT:
            raise ValueError(
                f"Expected at most {MAX_CONFIG_TEXT} characters in config.{name}, got {len(value)}."
            )


def name_in_tree(site: str, client: str) -> str:
    """Return the name by which a client's randomness is drawn.

    >>> name_in_tree("north/ward", "device"), name_in_tree("", "device")
    ('north/ward/device', 'device')

    Args:
        site: place of its server in a tree of sites; empty if that is no site.
        client: its name there.
    """
    return f"{site}/{client}" if site else client


def task_seed(seed: int, number: int, client: str) -> int:
    """Return the seed of a client's randomness in a round; it depends on nothing else."""
    text = f"{seed}\0{number}\0{client}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1
