"""The policy of a device's owner, `policy.toml`: which runs it joins, and what may leave it.

The server does not see the policy; it gets the reason when the device declines an offer. Every
setting restricts: an empty file restricts no run. Readings of the device are the exception: they
leave only where the policy lists them.

Invariant: a policy that is missing or cannot be read declines every offer, and lets no readings
leave.
"""

import os
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from fedloom.client.update.clip_and_noise import Guard
from fedloom.protocol import settings
from fedloom.protocol.errors import FedloomError, UsageError
from fedloom.protocol.settings import setting, toml
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies.masking.noise import share
from fedloom.strategies.masking.sessions import LEAST_GROUP

READINGS = ("cpu", "memory", "gpu", "temperature", "battery")
"""Readings that may leave; `fedloom.client.conditions.readings` takes them."""


class PolicyError(FedloomError):
    """The device's policy does not let data leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The runs that the device takes part in."""

    allow: tuple[str, ...] = setting(
        ("*",), doc="runs to take part in: patterns (globs) of a run's name or id"
    )
    deny: tuple[str, ...] = setting(
        (), doc="runs to decline, even if allow lists them", example=["test-*"]
    )
    rounds_per_hour: int = setting(0, doc="most rounds to join per hour; 0: no limit", least=0)
    rounds_per_day: int = setting(0, doc="most rounds to join per day; 0: no limit", least=0)
    evaluate: bool = setting(True, doc="evaluate received models on the examples of this device")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """The data that may leave the device."""

    only: tuple[str, ...] = setting(
        ("*",), doc="tensors whose updates may leave: patterns (globs) of their names"
    )
    never: tuple[str, ...] = setting(
        (),
        doc="tensors whose updates never leave, even if only lists them",
        example=["embedding.*"],
    )
    max_bytes: int = setting(0, doc="largest update, bytes; 0: no limit", least=0)
    min_examples: int = setting(
        0, doc="fewest examples behind an update or a metric that leaves", least=0
    )
    metrics: bool = setting(True, doc="whether metrics leave, such as loss and accuracy")
    error_messages: bool = setting(
        True, doc="whether the text of an error in the training code leaves; it may quote examples"
    )


def noise_of(offer: fleet_pb2.Task) -> float:
    """Return the least noise that an offer asks this device to add, over the clip.

    In a masked task it adds a share of its session's noise, the least one in the largest session.
    """
    asked = offer.privacy.noise_multiplier
    return share(asked, offer.masking.group) if asked and offer.HasField("masking") else asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """The protection that an update needs: clipping and noise."""

    clip_norm: float = setting(
        0.0,
        doc="largest Euclidean norm that an update may be clipped to; 0: no clipping needed",
        least=0,
    )
    noise: float = setting(
        0.0,
        doc="least noise that this device must add: standard deviation / clip_norm; 0: none",
        least=0,
    )
    otherwise: Literal["decline", "add"] = setting(
        "decline",
        doc="for a run that asks for less: decline it, or clip and add the noise here anyway",
    )

    def __post_init__(self) -> None:
        if self.noise and not self.clip_norm:
            raise UsageError("Expected privacy.clip_norm > 0 with privacy.noise, got 0.")

    def is_met(self, offer: fleet_pb2.Task) -> bool:
        """Whether an offer asks the device for enough clipping and noise.

        Noise from the task's seed does not count: the server knows it.
        """
        if not self.clip_norm:
            return True
        asked = offer.privacy
        if not offer.HasField("privacy") or not 0 < asked.clip <= self.clip_norm:
            return False
        made = 0.0 if asked.seeded else noise_of(offer) * asked.clip
        return made >= self.noise * self.clip_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskingPolicy:
    """The least that a masked update needs: below it, the device declines."""

    required: bool = setting(
        False, doc="decline runs whose updates are not masked, so that only sums can be read"
    )
    min_group: int = setting(
        16, doc="fewest members of a session, in whose sum the update is hidden", least=LEAST_GROUP
    )
    min_ready: int = setting(
        0,
        doc="fewest devices in the signed list from which sessions are drawn; 0: the server may "
        "choose the members of a session",
        least=0,
    )
    repeats: int = setting(
        0, doc="how often another update of the same model may be masked", least=0
    )
    peers: str = setting(
        "any",
        doc='file with the public keys, in PEM, of the only members to accept; "any": all devices '
        "of the federation; relative to this file",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePolicy:
    """The readings of the device that the operator may see, beside all runs."""

    report: tuple[str, ...] = setting(
        (),
        doc="readings of this device that are sent once a minute while it is connected: cpu, "
        "memory, gpu, temperature, battery; none by default",
        example=["temperature", "battery"],
    )

    def __post_init__(self) -> None:
        if unknown := [each for each in self.report if each not in READINGS]:
            raise UsageError(
                f"Expected device.report of {', '.join(READINGS)}, got {', '.join(unknown)}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The runs that a device takes part in, and the data that may leave it."""

    runs: Runs = field(default_factory=Runs)
    leaves: Leaves = field(default_factory=Leaves)
    privacy: Protection = field(default_factory=Protection)
    masking: MaskingPolicy = field(default_factory=MaskingPolicy)
    device: DevicePolicy = field(default_factory=DevicePolicy)

    @property
    def is_open(self) -> bool:
        """Whether it restricts no run; readings of the device are beside all runs."""
        return replace(self, device=DevicePolicy()) == Policy()

    @property
    def metrics(self) -> bool:
        """Whether metrics leave: never with noise, which they could undo."""
        return self.leaves.metrics and not self.privacy.clip_norm

    def may_leave(self, tensor: str) -> bool:
        """Whether the update of a tensor may leave."""
        return _matches(tensor, self.leaves.only) and not _matches(tensor, self.leaves.never)

    def adds(self, offer: fleet_pb2.Task) -> bool:
        """Whether the device adds its own clipping and noise for an offer."""
        return not self.privacy.is_met(offer)

    def guard(self, offer: fleet_pb2.Task) -> Guard | None:
        """The device's own clipping and noise; None if the run asks for enough."""
        if not self.adds(offer):
            return None
        wanted = self.privacy
        return Guard(clip_norm=wanted.clip_norm, noise_multiplier=wanted.noise)

    def objection(self, offer: fleet_pb2.Task) -> str | None:
        """The reason to decline an offer, regardless of earlier ones; None to accept."""
        run, name = offer.key.run, offer.run_name
        if not any(_matches(word, self.runs.allow) for word in (run, name)):
            return f"the device's policy does not allow the run {name or run}."
        if any(_matches(word, self.runs.deny) for word in (run, name)):
            return f"the device's policy denies the run {name or run}."
        if self.masking.required and not offer.HasField("masking"):
            return "the device's policy requires masked updates (masking.required)."
        if offer.kind == fleet_pb2.TASK_KIND_EVALUATE:
            return self._objection_to_evaluation()
        if offer.kind == fleet_pb2.TASK_KIND_MESSAGE:
            return self._objection_to_messages()
        return self._objection_to_training(offer)

    def _objection_to_training(self, offer: fleet_pb2.Task) -> str | None:
        if self.privacy.otherwise == "decline" and not self.privacy.is_met(offer):
            return f"the device's policy requires {self.wanted()}; the run has {_given(offer)}."
        return None

    def _objection_to_evaluation(self) -> str | None:
        if not self.runs.evaluate:
            return "the device's policy does not allow evaluation."
        return None if self.metrics else "the device's policy lets no metrics leave."

    def _objection_to_messages(self) -> str | None:
        if self.runs.evaluate and self.leaves == Leaves() and not self.privacy.clip_norm:
            return None
        return (
            "the device's policy limits what may leave it, and replies to a Flower ServerApp may "
            "hold anything."
        )

    def wanted(self) -> str:
        """The required protection, as text."""
        if not self.privacy.noise:
            return f"updates clipped to norm {self.privacy.clip_norm:g}"
        noise = self.privacy.noise * self.privacy.clip_norm
        return (
            f"updates clipped to norm {self.privacy.clip_norm:g} with noise of {noise:g} "
            "made on the device"
        )


def _matches(word: str, patterns: tuple[str, ...]) -> bool:
    return bool(word) and any(fnmatchcase(word, pattern) for pattern in patterns)


def _given(offer: fleet_pb2.Task) -> str:
    asked = offer.privacy
    if not offer.HasField("privacy"):
        return "no protection"
    if asked.seeded and asked.noise_multiplier:
        return f"norm {asked.clip:g} and noise that the server knows"
    return f"norm {asked.clip:g} and noise of {noise_of(offer) * asked.clip:.4g}"


def load(path: Path) -> Policy:
    """Read a policy.toml.

    Raises:
        UsageError: it is missing or cannot be read, or a setting is unknown or not valid.
    """
    missing = "restore it, or write an empty one that restricts nothing"
    document = toml.read(path, "the device's policy", missing=missing)
    with settings.within(path):
        policy = settings.build(Policy, settings.from_table(Policy, document))
    if policy.masking.peers == "any":
        return policy
    peers = path.absolute().parent / policy.masking.peers
    return replace(policy, masking=replace(policy.masking, peers=f"{peers}"))


class PolicyFile:
    """A policy file that is read again when it changes: an edit applies from the next offer.

    Args:
        path: of the file; None for no restrictions.

    Raises:
        UsageError: it cannot be read.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._policy = Policy()
        self.current()

    def current(self) -> Policy:
        """The current policy.

        Raises:
            UsageError: it cannot be read, so every offer is declined.
        """
        if self._path is None:
            return self._policy
        seen = _stamp(self._path)
        if seen is None or seen != self._seen:
            self._policy = load(self._path)
            self._seen = seen
        return self._policy


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - a Path's costs twice as much, at every offer
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


# ---- descriptions --------------------------------------------------------------------------------


def words(policy: Policy) -> list[str]:
    """Describe a policy, one sentence for each rule."""
    runs, leaves = policy.runs, policy.leaves
    said = [f"Takes part in {_listed('runs', runs.allow)}{_but(runs.deny)}."]
    rates = [(runs.rounds_per_hour, "an hour"), (runs.rounds_per_day, "a day")]
    limits = [f"{count} round{'s' if count > 1 else ''} {span}" for count, span in rates if count]
    said.append(f"At most {' and '.join(limits)}." if limits else "Any number of rounds.")
    said.append(
        "Evaluates received models on its examples."
        if runs.evaluate and policy.metrics
        else "Evaluates no models."
    )
    said.append(f"Updates of {_listed('tensors', leaves.only)} may leave{_but(leaves.never)}.")
    if leaves.max_bytes:
        said.append(f"An update is at most {leaves.max_bytes:,} bytes long.")
    if leaves.min_examples:
        said.append(f"Updates and metrics are of at least {leaves.min_examples} examples.")
    said.append(
        "Metrics such as loss and accuracy leave." if policy.metrics else "No metrics leave."
    )
    said.append(
        "Error messages of the training code leave."
        if leaves.error_messages
        else "Of errors in the training code only the type leaves."
    )
    said.append(_protection(policy))
    said.append(_masking(policy.masking))
    readings = ", ".join(policy.device.report)
    said.append(
        f"Reports its {readings} while it is connected." if readings else "Reports no readings."
    )
    return said


def _protection(policy: Policy) -> str:
    if not policy.privacy.clip_norm:
        return "Clipping and noise are up to each run."
    if policy.privacy.otherwise == "decline":
        return f"Declines runs that do not ask for {policy.wanted()}."
    return f"Sends {policy.wanted()}, also if a run asks for less."


def _masking(asked: MaskingPolicy) -> str:
    start = "Sends masked updates only" if asked.required else "Where a run masks updates, sends"
    start += ", each" if asked.required else " each"
    said = f"{start} within the sum of at least {asked.min_group} devices"
    if asked.peers != "any":
        said += f" whose keys are in {asked.peers}"
    if asked.min_ready:
        said += f", drawn from at least {asked.min_ready}"
    if asked.repeats:
        times = "once" if asked.repeats == 1 else f"{asked.repeats} times"
        said += f", and {times} more of the same model"
    return f"{said}."


def _listed(what: str, patterns: tuple[str, ...]) -> str:
    if "*" in patterns:
        return f"all {what}"
    return f"the {what} {', '.join(patterns)}" if patterns else f"no {what}"


def _but(patterns: tuple[str, ...]) -> str:
    return f", but never {', '.join(patterns)}" if patterns else ""


def template() -> str:
    """Return a policy.toml with every setting, its description, and its default as a comment."""
    head = [
        "# The runs that this device takes part in, and the data that may leave it. The server",
        "# cannot change this file. An edit applies from the next offer. `fedloom client policy",
        "# check` describes it; see also docs/safety.md. Comments show the defaults.",
    ]
    return settings.template(Policy, head, {})
