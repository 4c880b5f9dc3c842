"""The clock of a round: its deadline, its pause, and when something is due next.

Times are monotonic seconds and come with each event; nothing here reads the system's clock.

Invariant: nothing is due before `check_at`, so an engine need not look at its members until then.
"""

from math import inf, isfinite

from .errors import OperatorRefused

AT_ONCE = -inf
"""As `check_at`: something is due with the next event."""


class RoundClock:
    """The time of a round.

    Args:
        now: monotonic seconds.

    Attributes:
        now: of the last event.
        deadline: of the round; infinity before it opens.
        give_up_at: when a round is abandoned whose quorum is out of reach; infinity otherwise.
        look_at: until when such a round only waits: then it looks for clients that may yet come.
        paused_at: when an operator paused the round; None while it runs.
        check_at: nothing is due before this time.
    """

    __slots__ = ("check_at", "deadline", "give_up_at", "look_at", "now", "paused_at")

    def __init__(self, now: float) -> None:
        self.now = now
        self.deadline = inf
        self.give_up_at = self.look_at = inf
        self.paused_at: float | None = None
        self.check_at = AT_ONCE

    @property
    def paused(self) -> bool:
        """Whether an operator paused the round."""
        return self.paused_at is not None

    def deadline_left_s(self, now: float) -> float | None:
        """Seconds until the deadline, which a pause stops; None before it is set."""
        return self._left_s(self.deadline, now)

    def gives_up_in_s(self, now: float) -> float | None:
        """Seconds until a round without hope of its quorum is abandoned; None while there is."""
        return self._left_s(self.give_up_at, now)

    def _left_s(self, at: float, now: float) -> float | None:
        if at == inf:
            return None
        return max(0.0, at - (now if self.paused_at is None else self.paused_at))

    def stop(self) -> None:
        """Stop: the round is closing or over."""
        self.paused_at, self.check_at, self.give_up_at = None, inf, inf

    def hope(self) -> None:
        """The quorum is in reach, or another client came: no end is near."""
        self.give_up_at = inf

    def grace_until(self, grace_s: float) -> float:
        """The end of a period that begins now, such as the grace of a member that leaves."""
        if self.paused_at is not None:
            return self.paused_at + grace_s
        until = self.now + grace_s
        self.check_at = min(self.check_at, until)
        return until

    # ---- commands of the operator ------------------------------------------------------------

    def pause(self) -> None:
        """Pause.

        Raises:
            OperatorRefused: it is paused already.
        """
        if self.paused:
            raise OperatorRefused("The round is paused already.")
        self.paused_at, self.check_at = self.now, inf

    def resume(self) -> float:
        """Resume; the deadline moves by the pause.

        Returns:
            The length of the pause in seconds.

        Raises:
            OperatorRefused: it is not paused.
        """
        if self.paused_at is None:
            raise OperatorRefused("The round is not paused.")
        pause_s = self.now - self.paused_at
        self.deadline += pause_s
        self.give_up_at += pause_s
        self.look_at += pause_s
        self.paused_at, self.check_at = None, AT_ONCE  # what the pause delayed is due now
        return pause_s

    def extend(self, seconds: float) -> None:
        """Move the deadline.

        Raises:
            OperatorRefused: the seconds are not positive and finite.
        """
        if not (seconds > 0 and isfinite(self.deadline + seconds)):
            raise OperatorRefused(f"Expected seconds={seconds} > 0 and finite.")
        self.deadline += seconds
