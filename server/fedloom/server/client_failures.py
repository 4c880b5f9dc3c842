"""When a client counts as failing, and how long it then gets no offers: pure functions.

A client fails when it reports that its task failed, or when its update is refused. An accepted
update halves the number of its recent failures, so that a client that fails most tasks stays
failing, and one that was mended is soon well. An evaluation that succeeds says nothing about
failures of training. An operator's release ends them all. Other tasks do not count: one that was
declined is normal, and one that was late or lost says nothing about the client's code.
"""

from dataclasses import dataclass, replace

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import setting

_MOST_DOUBLINGS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRules:
    """The settings of `[clients]` in server.toml."""

    device_report_s: float = setting(
        60.0,
        doc="interval at which devices report load, memory, temperature and battery, where their "
        "owners let these leave, seconds, at least 10; 0: never",
        least=0,
    )

    failing_after: int = setting(
        3,
        doc="recent failed or refused tasks from which a client is failing; each accepted update "
        "halves their number",
        least=1,
    )
    cool_off_s: float = setting(
        0.0,
        doc="time in which a failing client gets no offers, seconds; each further failure doubles "
        "it. Runs with [privacy] are exempt. 0: none",
        least=0,
    )
    longest_cool_off_s: float = setting(24 * 3600.0, doc="longest such time, seconds", least=0)

    def __post_init__(self) -> None:
        if self.longest_cool_off_s < self.cool_off_s:
            raise UsageError(
                f"Expected clients.longest_cool_off_s >= cool_off_s = {self.cool_off_s:g}, got "
                f"{self.longest_cool_off_s:g}."
            )


@dataclass(frozen=True, slots=True)
class Failures:
    """A client's recent failed and refused tasks.

    Attributes:
        count: each accepted update halves it.
        last_at: when the latest ended, seconds since the epoch.
        evaluating: whether the latest only evaluated.
    """

    count: int = 0
    last_at: float = 0.0
    evaluating: bool = False

    def plus_one(self, at: float, *, evaluating: bool = False) -> "Failures":
        """These and one that ended at `at`."""
        return Failures(self.count + 1, at, evaluating)

    def after_success(self, *, evaluating: bool) -> "Failures":
        """What is left of these after an accepted update."""
        if evaluating and not self.evaluating:
            return self
        return replace(self, count=self.count // 2)

    def is_failing(self, rules: ClientRules) -> bool:
        """Whether the client is failing."""
        return self.count >= rules.failing_after

    def cools_until(self, rules: ClientRules) -> float:
        """Until when the client gets no offers, seconds since the epoch; 0 if it cools not off."""
        if not self.is_failing(rules) or not rules.cool_off_s:
            return 0.0
        doublings = min(self.count - rules.failing_after, _MOST_DOUBLINGS)
        return self.last_at + min(rules.cool_off_s * 2.0**doublings, rules.longest_cool_off_s)
