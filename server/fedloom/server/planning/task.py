"""The task of a round's clients: the same in a deployment and in a simulation."""

from fedloom.protocol.task_description import DevicePrivacy, TaskDescription, TaskMasking
from fedloom.server.engine import RoundKind
from fedloom.server.planning.spec import RunSpec


def describe(
    spec: RunSpec, *, run: str, number: int, trained: int, kind: RoundKind, clip: float
) -> TaskDescription:
    """Return the task of a round, without its files and the values that differ between clients.

    `trained` counts the rounds committed before it.
    """
    train = kind is RoundKind.TRAIN
    return TaskDescription(
        run=run,
        round=number,
        kind=kind,
        settings=spec.local_training().at(trained + 1, spec.round_config().goal),
        rule=spec.client_rule,
        evaluate=spec.evaluate is True,
        weighting=spec.weighting,
        scheme=spec.build_compression(),
        personal=spec.build_personal(),
        adapters=spec.build_adapters(),
        training_round=0 if spec.evaluate_only else trained + train,
        config=spec.config,
        privacy=_privacy(spec, clip) if train else None,
        run_name=spec.name,
        masking=_masking(spec),
    )


def _masking(spec: RunSpec) -> TaskMasking | None:
    """How the updates of a masked round are masked; those of sites are sums, in clear."""
    settings, grid, words = spec.own_sessions(), spec.grid(), spec.masked_words()
    if settings is None or grid is None or words is None:
        return None
    return TaskMasking(
        sum_bits=settings.sum_bits,
        exponent=grid.exponent,
        group=settings.group,
        run_seed=spec.seed,
        metrics=words.bounds,
        max_examples=words.max_examples,
        session_s=settings.session_s,
    )


def _privacy(spec: RunSpec, clip: float) -> DevicePrivacy | None:
    """A device's part in privacy: clip, count, and add noise under local privacy."""
    plan = spec.privacy_plan()
    if plan is None:
        return None
    return DevicePrivacy(
        clip=clip,
        count_within=plan.settings.adaptive,
        noise_multiplier=0.0 if plan.settings.central else plan.noise_multiplier,
        seeded=plan.settings.noise == "seed",
        in_session=plan.settings.in_sessions,
    )
