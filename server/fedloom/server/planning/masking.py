"""Masked runs: checks of their bounds, what is shown of their sums, the words of their updates.

All is arithmetic on the specification, so it is refused or shown before a run starts. The
cryptography of sessions is elsewhere.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedloom.protocol.errors import UsageError
from fedloom.server.engine import MaskedConfig, RoundConfig
from fedloom.strategies.exact.grid import Grid
from fedloom.strategies.masking.noise import SessionNoise
from fedloom.strategies.masking.over_sessions import OverSessions
from fedloom.strategies.masking.plausible import SumLimits
from fedloom.strategies.masking.sessions import (
    check_sizes,
    extremes,
    honest,
    session_facts,
    session_sizes,
)
from fedloom.strategies.masking.settings import Masking
from fedloom.strategies.masking.words import MaskedWords
from fedloom.strategies.privacy import Privacy


def check_deployed(
    masking: Masking | None, privacy: Privacy | None = None, *, tls: bool = True
) -> None:
    """Refuse a masked run that a server does not run.

    Args:
        masking: the settings; None without masking.
        privacy: of the run.
        tls: whether clients have certificates.

    Raises:
        UsageError: the message says why not.
    """
    if masking is None:
        return
    if privacy is not None and privacy.noise == "seed":
        raise UsageError(
            'Expected privacy.noise = "secure" in a masked run of a server, got "seed": the server '
            "could subtract the noise. Leave it out."
        )
    if not tls:
        raise UsageError(
            "Expected a server with TLS for [masking], got one without: members of a session know "
            "each other by their certificates. Start it without --plaintext."
        )


def masked_config(config: RoundConfig, masking: Masking) -> MaskedConfig:
    """Return the settings of a masked round.

    Raises:
        UsageError: the quorum is below `min_group`.
    """
    same = {each.name: getattr(config, each.name) for each in fields(RoundConfig)}
    return MaskedConfig(
        **same,
        group=masking.group,
        min_group=masking.min_group,
        phase_s=masking.phase_s,
        upload_s=masking.upload_limit_s,
        session_s=masking.session_s,
    )


def check_goals(config: RoundConfig, masking: Masking | None, sessions: int = 1) -> None:
    """Refuse a goal and a quorum that a masked run cannot have.

    A quorum of more clients than fit into one session less makes a round with too few sums one
    without a quorum: it is abandoned before anything is revealed.

    Args:
        config: with goal and quorum.
        masking: of the run; None without masking.
        sessions: the fewest that a round needs.

    Raises:
        UsageError: they split into sessions that are too small or too few, or the quorum is.
    """
    if masking is None:
        return
    masked_config(config, masking)
    if (found := -(-config.quorum // masking.group)) < sessions:
        raise UsageError(
            f"Expected a quorum of at least {sessions} sessions of up to {masking.group} clients, "
            f"as the aggregation needs, got {config.quorum} clients in {found}."
        )
    try:
        check_sizes(range(config.quorum, config.goal + 1), masking.group, masking.min_group)
    except ValueError as error:
        raise UsageError(str(error)) from None


def check_masking(
    masking: Masking,
    grid: Grid,
    *,
    finishers: range,
    max_examples: float,
    metrics: Mapping[str, Any],
    best: str | None,
    trains: bool,
    noise: SessionNoise | None = None,
) -> None:
    """Refuse bounds that do not fit, sessions that are too small, and metrics that are not sent.

    Args:
        masking: the settings.
        grid: of the run's sums.
        finishers: numbers of updates with which a round may close.
        max_examples: largest number of examples that counts for a metric.
        metrics: the [metrics] table as given.
        best: the metric of [best]; None without the table.
        trains: whether clients send tensors.
        noise: of the sessions; None without [privacy].

    Raises:
        ValueError: the message has the numbers that would fit.
    """
    check_sizes(finishers, masking.group, masking.min_group)
    if noise is not None:
        _check_noise(masking, grid, noise)
    elif trains:
        grid.check(masking.precision_of(grid.max_abs))
    masking.check_words(grid.max_weight, max_examples)
    if metrics.get("quantiles"):
        raise ValueError(
            "Expected no metrics.quantiles with [masking], got "
            f"{list(metrics['quantiles'])}: only sums of metrics are known. Leave them out."
        )
    if best is not None and best not in masking.metrics:
        raise ValueError(
            f"Expected the metric of [best], {best}, in masking.metrics, got "
            f"{', '.join(masking.metrics) or 'none'}: clients send no others. Add it with the "
            "bound of its magnitude, or leave out [best]."
        )


def _check_noise(masking: Masking, grid: Grid, noise: SessionNoise) -> None:
    if masking.precision is not None:
        raise ValueError(
            f"Expected no masking.precision with [privacy], got {masking.precision:g}: it limits "
            "the rounding of sums, which noise hides. Leave it out."
        )
    noise.check(grid)


def sum_limits(
    grid: Grid, *, max_norm: float | None, noise: SessionNoise | None, members: int, size: int
) -> SumLimits:
    """Return what the sum of a session can be.

    Args:
        grid: of the run's sums.
        max_norm: largest norm of an update; None for any.
        noise: of the run's sessions; None for none.
        members: on the session's roster.
        size: values of an update.
    """
    sampler = None if noise is None else noise.sampler(grid.exponent, members, size)
    return SumLimits(
        max_abs=grid.max_abs,
        max_weight=grid.heaviest,
        max_norm=max_norm,
        rounding=grid.rounding,
        noise=0.0 if sampler is None else sampler.sigma,
    )


def masked_facts(
    masking: Masking, grid: Grid, finishers: range, noise: SessionNoise | None = None
) -> dict[str, Any]:
    """Return plain values that describe masked sums, for `sum_lines`."""
    most = extremes(finishers, masking.group)
    sizes = [size for n in most for size in session_sizes(n, masking.group)]
    found = session_facts(min(sizes), max(sizes))
    facts = grid.facts(None if noise is not None else masking.precision_of(grid.max_abs))
    if noise is not None:
        for each in found["sessions"]:
            each["honest"] = honest(each["members"])
            each["noise"] = noise.steps(grid, each["members"])
    return facts | {"masking": found}


def over_sessions_text(rule: OverSessions, finishers: range, group: int) -> str:
    """Return what a robust rule over sessions withstands, in the smallest and the largest round."""
    numbers = [-(-n // group) for n in (finishers[0], finishers[-1])]
    spoiled = "each liar spoils all of its session"
    if not rule.tolerated(numbers[0]):
        return f"{rule.name} over sessions: none is left out, long ones are cut; {spoiled}"
    found = dict.fromkeys(f"{rule.tolerated(m)} of {m}" for m in numbers)
    return f"{rule.name} over sessions: for liars in up to {' to '.join(found)}; {spoiled}"


def body_bytes(values: int, bits: int, words: MaskedWords) -> int:
    """Return the bytes of a masked update: its values in `bits` bits, then its words.

    >>> nothing = MaskedWords(weighted=False, kinds=(), bounds={}, max_examples=1)
    >>> body_bytes(3, 24, nothing), body_bytes(1_000_000, 32, nothing)
    (16, 4000000)
    """
    return -(-values * bits // 64) * 8 + 8 * len(words.names)
