"""Sizes of masking sessions: how a round's finishers are split, and what a session withstands.

With n members, the shares of t of them rebuild a secret. A server that wants both shares of one
member needs two sets of t that overlap in c colluding members only: 2t <= n + c. A sum of t updates
must have those of two honest members, or the sum without the others' is one update.

Source: Bonawitz et al. 2017, https://eprint.iacr.org/2017/281, sections 6.2 and 7, theorem 6.5
(active adversaries, t > 2n/3).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedloom.strategies.exact.grid import grid_lines

MAX_GROUP: Final = 128
"""Most members of a session."""
LEAST_GROUP: Final = 3
"""Fewest members of a session: of two, each could read the other's update."""


def threshold(members: int) -> int:
    """Return t, the fewest members that a session needs at its end: floor(2n / 3) + 1.

    >>> threshold(16), threshold(64)
    (11, 43)
    """
    return 2 * members // 3 + 1


def drop_outs(members: int) -> int:
    """Return how many members may drop out before a session is abandoned: n − t."""
    return members - threshold(members)


def colluders(members: int) -> int:
    """Return c, the most members that may work with the server: 2t − n − 1, and at most t − 2.

    The second bound matters in sessions of three alone.

    >>> colluders(3), colluders(16), colluders(64)
    (1, 5, 21)
    """
    t = threshold(members)
    return min(2 * t - members - 1, t - 2)


def honest(members: int) -> int:
    """Return the fewest members of a session's sum that do not work with the server: t − c.

    >>> honest(3), honest(16), honest(64)
    (2, 6, 22)
    """
    return threshold(members) - colluders(members)


def session_sizes(finishers: int, group: int) -> tuple[int, ...]:
    """Return the sizes of the sessions of a round, which differ by at most one, larger first.

    >>> session_sizes(64, 64), session_sizes(130, 64)
    ((64,), (44, 43, 43))
    """
    count = -(-finishers // group)
    size, larger = divmod(finishers, max(count, 1))
    return (size + 1,) * larger + (size,) * (count - larger)


def extremes(finishers: range, group: int) -> tuple[int, ...]:
    """Return the numbers of finishers with the smallest and the largest sessions, ascending.

    Sizes rise from one multiple of `group` to the next, and fall behind each.

    Args:
        finishers: numbers of updates with which a round may close, at least one.
        group: most members of a session.
    """
    full = -(-finishers[0] // group) * group
    return tuple(n for n in sorted({finishers[0], full, full + 1, finishers[-1]}) if n in finishers)


def check_sizes(finishers: range, group: int, min_group: int) -> None:
    """Refuse a round that could be split into sessions that are too small.

    Args:
        finishers: numbers of updates with which the round may close.
        group: most members of a session.
        min_group: fewest.

    Raises:
        ValueError: the message has such a number.
    """
    for number in extremes(finishers, group):
        sizes = session_sizes(number, group)
        if sizes[-1] < min_group:
            raise ValueError(
                f"Expected masking.min_group <= {sizes[-1]} with masking.group = {group}, got "
                f"{min_group}: {number} finishers are split into sessions of "
                f"{', '.join(map(str, dict.fromkeys(sizes)))}. Lower masking.min_group, raise "
                "masking.group, or set cohort.goal and cohort.quorum to numbers that split."
            )


def session_facts(smallest: int, largest: int) -> dict[str, Any]:
    """Return plain values that describe sessions of these sizes, for `sum_lines`."""
    return {
        "sessions": [
            {
                "members": size,
                "threshold": threshold(size),
                "drop_outs": drop_outs(size),
                "colluders": colluders(size),
            }
            for size in dict.fromkeys((smallest, largest))
        ]
    }


def sum_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return what is known of a run's sums, as lines for people; the first one names the sum.

    Args:
        facts: of `Grid.facts`; with the key `masking`, what `session_facts` says.
    """
    lines = grid_lines(facts)
    masking = facts.get("masking")
    if masking is None:
        return lines
    bits, largest = facts["bits"], facts["bound"]
    noise = " with noise of 12 standard deviations" if facts.get("noisy") else ""
    first = f"{lines[0]}, in sessions of {_span(masking['sessions'])} devices"
    return [
        first,
        lines[1],
        f"overflow: none: the sum of a session{noise} is at most {largest:,} < 2^{bits - 1}",
        *lines[2:],
        *(_session_line(each) for each in masking["sessions"]),
        *(f"{name}: {text}" for name, text in masking.get("notes", {}).items()),
    ]


def _span(sessions: Sequence[Mapping[str, Any]]) -> str:
    return " to ".join(str(each["members"]) for each in sessions)


def _session_line(session: Mapping[str, Any]) -> str:
    line = (
        f"session of {session['members']}: threshold {session['threshold']}, for up to "
        f"{session['drop_outs']} drop-outs and {session['colluders']} colluding devices"
    )
    if "noise" not in session:
        return line
    return (
        f"{line}; each adds noise of at least {session['noise']:.4g} steps, and "
        f"{session['honest']} are sure to be honest and in the sum"
    )
