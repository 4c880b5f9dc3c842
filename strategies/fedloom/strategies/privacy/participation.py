"""Who may take part in the next round: the participation schema of a claim, as it is enforced.

    dp_ftrl      a client takes part at most once in each tree
    dp_bandmf    a client takes part at most once in any `separation` rounds in a row
    both         in at most `participations` rounds of the run, if that is set

Rounds are those that were committed, counted from 1. All follows from who took part in which of
them, so a restarted server finds the same.

Source: Choquette-Choo et al. 2023, https://arxiv.org/abs/2306.08153 (participation schemas with a
least separation and a largest number).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fedloom.strategies.privacy.settings import Privacy


@dataclass(frozen=True, slots=True)
class Participations:
    """The clients' rounds, as far as the schema depends on them.

    Attributes:
        rounds: client → number of rounds it took part in, and the last of them. Without a limit on
            their number it holds only clients that are excluded.
        excluded: clients that may not take part in the next round.
    """

    rounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    excluded: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, settings: Privacy, rounds: Mapping[str, tuple[int, int]], trained: int
    ) -> "Participations":
        """Return those of the clients' rounds, after `trained` committed rounds."""
        if not settings.correlated:
            return cls()
        most = settings.participations
        excluded = frozenset(
            client
            for client, (number, last) in rounds.items()
            if _rests(settings, last, trained) or (most is not None and number >= most)
        )
        if most is None:
            rounds = {client: rounds[client] for client in excluded}
        return cls(rounds, excluded)

    def after(self, settings: Privacy, part: Iterable[str], trained: int) -> "Participations":
        """Return those after a committed round.

        Args:
            settings: the [privacy] table.
            part: clients whose updates are in the round.
            trained: rounds committed, this one included.
        """
        return self.of(settings, {**self.rounds, **counted(self.rounds, part, trained)}, trained)


def counted(
    rounds: Mapping[str, tuple[int, int]], part: Iterable[str], trained: int
) -> dict[str, tuple[int, int]]:
    """Return the rounds of the clients that took part in one more, number `trained`."""
    return {client: (rounds.get(client, (0, 0))[0] + 1, trained) for client in part}


def _rests(settings: Privacy, last: int, trained: int) -> bool:
    if settings.separation is not None:
        return trained + 1 - last < settings.separation
    assert settings.restart_every is not None
    return last > trained - trained % settings.restart_every
