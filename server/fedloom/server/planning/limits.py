"""The contents of a run's sums, their release, and the limits on updates.

All of it follows from the specification and the model's manifest, so a restarted server and a
simulator agree.
"""

from dataclasses import replace
from typing import Any

from fedloom.protocol.errors import UsageError
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.updates.message import Limits
from fedloom.server.engine import RoundKind
from fedloom.server.planning.spec import RunSpec
from fedloom.server.planning.state_note import StateNote
from fedloom.strategies import Partial, privacy
from fedloom.strategies.exact.partial import Key, TensorSpec
from fedloom.strategies.privacy import Release


def sums(spec: RunSpec, manifest: Manifest) -> dict[Key, TensorSpec]:
    """Return the tensors and scalars that updates may cover and a round sums.

    Raises:
        UsageError: [personal] or train.only does not fit the model.
    """
    released = release(spec, manifest)
    return _strategy_sums(spec, manifest) | ({} if released is None else released.counts)


def empty_sum(spec: RunSpec, manifest: Manifest) -> Partial:
    """Return the sum of a round before any update.

    Raises:
        UsageError: [personal] or train.only does not fit the model.
    """
    return Partial(sums(spec, manifest), spec.exponent(), narrow=spec.is_narrow)


def _strategy_sums(spec: RunSpec, manifest: Manifest) -> dict[Key, TensorSpec]:
    asked = _asked(spec, manifest)
    sent = {name: tensor for name, tensor in manifest.specs.items() if name in asked}
    return spec.build_strategy().specs(sent)


def _asked(spec: RunSpec, manifest: Manifest) -> frozenset[str]:
    """The tensors that clients may send."""
    personal, adapters, specs = spec.build_personal(), spec.build_adapters(), manifest.specs
    try:
        personal.check(specs)
        stay = personal.kept(specs) | adapters.frozen(specs)
        asked = spec.local_training().matching(specs.keys() - stay)
        adapters.check_model(specs, asked)
    except ValueError as error:
        raise UsageError(str(error)) from None
    asked -= _fixed(spec, manifest)
    if not asked:
        raise UsageError("Expected floating-point tensors in a private run's model, got none.")
    return asked


def _fixed(spec: RunSpec, manifest: Manifest) -> frozenset[str]:
    """Tensors that no round changes: noise for floating point would not hide an integer."""
    if not spec.privacy:
        return frozenset()
    return frozenset(name for name in manifest.specs if not manifest.is_float(name))


def claim(spec: RunSpec, manifest: Manifest) -> dict[str, Any] | None:
    """Return the privacy claim of a run of this model; None without [privacy]."""
    plan = spec.privacy_plan()
    if plan is None:
        return None
    return plan.claim(name for _, name in _strategy_sums(spec, manifest))


def release(spec: RunSpec, manifest: Manifest) -> Release | None:
    """Return how sums are released; None without [privacy]."""
    plan = spec.privacy_plan()
    if plan is None:
        return None
    specs = {name: tensor for (_, name), tensor in _strategy_sums(spec, manifest).items()}
    _check_size(spec, sum(tensor.size for tensor in specs.values()))
    return Release(
        settings=plan.settings,
        noise_multiplier=plan.noise_multiplier,
        goal=plan.goal,
        specs=specs,
        factor=plan.releases.factor,
    )


def _check_size(spec: RunSpec, size: int) -> None:
    """Refuse a model of which masked sums with noise would be mostly rounding."""
    noise, grid = spec.session_noise(), spec.grid()
    if noise is not None and grid is not None:
        try:
            noise.check_size(grid, size)
        except ValueError as error:
            raise UsageError(str(error)) from None


def limits(spec: RunSpec, manifest: Manifest) -> Limits:
    """Return the limits on updates of the run."""
    if (messages := spec.message_settings()) is not None:
        return messages.limits
    rule = spec.client_rule
    compression = spec.build_compression()
    kept, fixed = spec.build_personal().kept(manifest.specs), _fixed(spec, manifest)
    return Limits(
        max_abs=spec.max_abs,
        max_norm=longest(spec, manifest, None),
        max_weight=spec.max_weight,
        weighting=spec.weighting,
        groups=rule.groups,
        max_bytes=manifest.full_update_bytes(len(rule.groups)),
        codec=None if compression is None else compression.codec,
        scalars=(*rule.scalars, *_counted(spec, manifest)),
        kept=kept,
        fixed=fixed,
        unasked=frozenset(manifest.specs) - _asked(spec, manifest) - kept - fixed,
        adapters=spec.build_adapters() if spec.adapters else None,
    )


def of_round(
    spec: RunSpec, manifest: Manifest, kind: RoundKind, clip: float | None, run: Limits
) -> Limits:
    """Return the limits on updates of one round.

    Args:
        spec: of the run.
        manifest: of its model.
        kind: of the round.
        clip: of the round, with [privacy].
        run: what `limits` returned.
    """
    found = replace(run, max_norm=longest(spec, manifest, clip))
    return replace(found, groups=(), scalars=()) if kind is RoundKind.EVALUATE else found


def clip_of(spec: RunSpec, strategy_state: str | None) -> float | None:
    """Return the clip of the next round after this state; None without [privacy]."""
    settings = spec.build_privacy()
    if settings is None:
        return None
    noted = StateNote.read(strategy_state).clip
    return settings.clip if noted is None else noted


def _counted(spec: RunSpec, manifest: Manifest) -> tuple[str, ...]:
    released = release(spec, manifest)
    return () if released is None else tuple(name for _, name in released.counts)


def longest(spec: RunSpec, manifest: Manifest, clip: float | None) -> float | None:
    """Return the largest norm that an update may have; None for any.

    Without `clip`, that of the first round.
    """
    plan = spec.privacy_plan()
    if plan is None:
        return spec.max_norm
    most = plan.settings.clip if clip is None else clip
    if plan.settings.is_local:
        size = sum(tensor.size for tensor in _strategy_sums(spec, manifest).values())
        most = privacy.norm_bound(most, plan.noise_multiplier, size)
    return most if spec.max_norm is None else min(spec.max_norm, most)
