"""What a device's owner lets it take part in, and what may leave it: `policy.toml`.

The policy is the device's own. The server does not see it, but hears why an offer was declined.
Everything in it restricts: with an empty file the device does what it is asked.

Invariant: a file that cannot be read lets nothing through, and neither does one that is gone.
"""

import os
import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from fedloom.client import settings
from fedloom.client.settings import setting
from fedloom.client.update.clip_and_noise import Guard
from fedloom.protocol.errors import FedloomError, UsageError
from fedloom.protocol.v1 import fleet_pb2


class PolicyError(FedloomError):
    """The device's policy keeps something here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What the device takes part in."""

    allow: tuple[str, ...] = setting(
        ("*",), doc="runs to take part in: patterns of a run's name or id, as of file names"
    )
    deny: tuple[str, ...] = setting(
        (), doc="runs to take no part in, whatever allow says", example=["test-*"]
    )
    rounds_per_hour: int = setting(0, doc="rounds to take part in within an hour; 0: any", least=0)
    rounds_per_day: int = setting(0, doc="rounds to take part in within a day; 0: any", least=0)
    evaluate: bool = setting(True, doc="evaluate received models on this device's examples")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """What may leave the device."""

    only: tuple[str, ...] = setting(
        ("*",), doc="tensors whose changes may leave: patterns of their names"
    )
    never: tuple[str, ...] = setting(
        (), doc="tensors whose changes never leave, whatever only says", example=["embedding.*"]
    )
    max_bytes: int = setting(0, doc="bytes of one update; 0: any", least=0)
    min_examples: int = setting(
        0, doc="examples that an update, or a measurement, must be of at least", least=0
    )
    metrics: bool = setting(True, doc="measurements, such as loss and accuracy")
    error_messages: bool = setting(
        True, doc="the text of an error in the training code; it may quote examples"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """What must hide the examples in an update."""

    clip_norm: float = setting(
        0.0,
        doc="Euclidean norm that an update must be clipped to, or a smaller one; 0: none",
        least=0,
    )
    noise: float = setting(
        0.0,
        doc="standard deviation of noise that must be added here, over clip_norm; 0: none",
        least=0,
    )
    otherwise: Literal["decline", "add"] = setting(
        "decline",
        doc="where a run asks for less: decline it, or clip and add noise here all the same",
    )

    def __post_init__(self) -> None:
        """Noise is measured by the norm."""
        if self.noise and not self.clip_norm:
            raise UsageError("expected privacy.clip_norm > 0 with privacy.noise, got 0.")

    def is_met(self, offer: fleet_pb2.Task) -> bool:
        """Does what an offer asks of the device hide enough?

        Noise that follows from the task's seed hides nothing: the server knows it.
        """
        if not self.clip_norm:
            return True
        asked = offer.privacy
        if not offer.HasField("privacy") or not 0 < asked.clip <= self.clip_norm:
            return False
        made = 0.0 if asked.seeded else asked.noise_multiplier * asked.clip
        return made >= self.noise * self.clip_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a device takes part in, and what may leave it."""

    runs: Runs = field(default_factory=Runs)
    leaves: Leaves = field(default_factory=Leaves)
    privacy: Protection = field(default_factory=Protection)

    @property
    def metrics(self) -> bool:
        """Whether measurements leave: never beside noise, which they would tell about."""
        return self.leaves.metrics and not self.privacy.clip_norm

    def may_leave(self, tensor: str) -> bool:
        """May a tensor's change leave?"""
        return _matches(tensor, self.leaves.only) and not _matches(tensor, self.leaves.never)

    def adds(self, offer: fleet_pb2.Task) -> bool:
        """Does the device itself clip and add noise to the update for an offer?"""
        return not self.privacy.is_met(offer)

    def guard(self, offer: fleet_pb2.Task) -> Guard | None:
        """What the device itself does to an update; None where the run asks for enough."""
        if not self.adds(offer):
            return None
        wanted = self.privacy
        return Guard(clip_norm=wanted.clip_norm, noise_multiplier=wanted.noise)

    def objection(self, offer: fleet_pb2.Task) -> str | None:
        """Why not to take an offer, whatever was taken before; None for yes."""
        run, name = offer.key.run, offer.run_name
        if not any(_matches(word, self.runs.allow) for word in (run, name)):
            return f"the device's policy has {name or run} not among the runs that it allows."
        if any(_matches(word, self.runs.deny) for word in (run, name)):
            return f"the device's policy denies {name or run}."
        if offer.kind == fleet_pb2.TASK_KIND_EVALUATE:
            if not self.runs.evaluate:
                return "the device's policy lets no model be evaluated."
            return None if self.metrics else "the device's policy lets no measurements leave."
        if self.privacy.otherwise == "decline" and not self.privacy.is_met(offer):
            return f"the device's policy wants {self.wanted()} of a run, got {_given(offer)}."
        return None

    def wanted(self) -> str:
        """What must hide examples, in words."""
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
        return "none of it"
    if asked.seeded and asked.noise_multiplier:
        return f"norm {asked.clip:g} and noise that the server knows"
    return f"norm {asked.clip:g} and noise of {asked.noise_multiplier * asked.clip:g}"


def load(path: Path) -> Policy:
    """Read a policy.toml.

    Raises:
        UsageError: it is missing, or holds what it must not.
    """
    try:
        document = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(
            f"Expected the device's policy in {path}, got no such file: restore it, or write an "
            "empty one that restricts nothing."
        ) from None
    except OSError as error:
        raise UsageError(f"Expected the device's policy in {path}, got {error}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None
    try:
        return settings.build(Policy, settings.from_toml(Policy, document))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


class PolicyFile:
    """A policy as it is on disk now: an edit counts from the next offer on.

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
        """The policy that holds.

        Raises:
            UsageError: it cannot be read, so nothing may happen.
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


# ---- in words ------------------------------------------------------------------------------------


def words(policy: Policy) -> list[str]:
    """What a policy means, a sentence for each thing it says."""
    runs, leaves = policy.runs, policy.leaves
    said = [f"Takes part in {_listed('runs', runs.allow)}{_but(runs.deny)}."]
    rates = [(runs.rounds_per_hour, "an hour"), (runs.rounds_per_day, "a day")]
    limits = [f"{count} round{'s' if count > 1 else ''} {span}" for count, span in rates if count]
    said.append(f"At most {' and '.join(limits)}." if limits else "As often as it is asked.")
    said.append(
        "Evaluates received models on its examples."
        if runs.evaluate and policy.metrics
        else "Evaluates no models."
    )
    said.append(f"Changes of {_listed('tensors', leaves.only)} may leave{_but(leaves.never)}.")
    if leaves.max_bytes:
        said.append(f"An update is at most {leaves.max_bytes:,} bytes long.")
    if leaves.min_examples:
        said.append(f"Updates and measurements are of at least {leaves.min_examples} examples.")
    said.append(
        "Measurements such as loss and accuracy leave."
        if policy.metrics
        else "No measurements leave."
    )
    said.append(
        "The text of errors in the training code leaves."
        if leaves.error_messages
        else "Of errors in the training code only their kind leaves."
    )
    said.append(_protection(policy))
    return said


def _protection(policy: Policy) -> str:
    if not policy.privacy.clip_norm:
        return "What hides examples in updates is up to each run."
    if policy.privacy.otherwise == "decline":
        return f"Declines runs that do not ask for {policy.wanted()}."
    return f"Sends {policy.wanted()}, also where a run asks for less."


def _listed(what: str, patterns: tuple[str, ...]) -> str:
    if "*" in patterns:
        return f"all {what}"
    return f"the {what} {', '.join(patterns)}" if patterns else f"no {what}"


def _but(patterns: tuple[str, ...]) -> str:
    return f", but never {', '.join(patterns)}" if patterns else ""


def template() -> str:
    """A policy.toml with every setting, its sentence, and its default as a comment."""
    lines = [
        "# What this device takes part in, and what may leave it. The server cannot change it.",
        "# An edit counts from the next offer on; `fedloom client policy check` puts it in words.",
        "# docs/safety.md says more. What is commented out is the default: no restriction.",
    ]
    table = ""
    for item in settings.declared(Policy):
        if item.table != table:
            table = item.table
            lines += ["", f"[{table}]"]
        shown = item.example if item.default == () else item.default
        lines += ["", f"# {item.doc}", f"# {item.name} = {settings.text_of(shown)}"]
    return "\n".join(lines) + "\n"
