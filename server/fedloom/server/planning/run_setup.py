"""The parts of a run that its rounds compute with, built once from its specification.

They follow from the specification, the model's manifest and the run's noise key alone, so a
restarted server and a simulator agree.
"""

from dataclasses import dataclass, field

from fedloom.protocol.codecs import Codec
from fedloom.protocol.manifest import Manifest
from fedloom.server.planning import limits
from fedloom.server.planning.spec import RunSpec
from fedloom.strategies import Strategy
from fedloom.strategies.privacy import Plan, Release, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """The parts of a run that no round changes.

    Attributes:
        spec: of the run.
        manifest: of its model.
        strategy: with its client rule and its aggregation.
        broadcast: encodes the differences between models for clients; None to send whole
            models.
        privacy: noise, budget and claim; None without [privacy].
        release: how sums are released; None without [privacy].
        stream: of the run's noise key; None without [privacy].
    """

    spec: RunSpec
    manifest: Manifest
    strategy: Strategy
    broadcast: Codec | None
    privacy: Plan | None
    release: Release | None
    stream: Stream | None = field(repr=False)

    @classmethod
    def of(cls, spec: RunSpec, manifest: Manifest, stream: Stream | None) -> "RunSetup":
        """Build the parts from a specification.

        Raises:
            UsageError: [personal] or train.only does not fit the model.
        """
        return cls(
            spec=spec,
            manifest=manifest,
            strategy=spec.build_strategy(),
            broadcast=spec.build_broadcast(),
            privacy=spec.privacy_plan(),
            release=limits.release(spec, manifest),
            stream=stream,
        )
