"""Differential privacy of an update on the device: clip it, count it, add noise to it.

Agent and simulator share this, so that the same training sends the same bits.

Tensors that are not floating point are not sent: the count of batches of a normalisation would
determine the norm and leave nothing of the weights, and its noise would be meaningless.

Invariants: the clipped norm is of the values as they are sent, over all parts together; it does not
depend on the order of the parts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from fedloom.client.training.client_rule import RuleOutput
from fedloom.protocol.errors import UsageError
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.task_description import DevicePrivacy
from fedloom.protocol.tensors.container import DTYPES
from fedloom.protocol.trust.noise_stream import derived_key, key_of_seed, keyed
from fedloom.strategies.masking.noise import MemberNoise, member_sampler
from fedloom.strategies.privacy import add_noise, clip
from fedloom.strategies.privacy.release import WITHIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Clipping and noise of an update.

    Attributes:
        clip_norm: largest norm of the whole update; a longer one is scaled down to it.
        count_within: also send whether the update was within `clip_norm`.
        noise_multiplier: of the device's own noise; 0 for none.
        session_noise: noise multiplier of a masking session, of which the device adds a share to
            its body, before the masks; 0 for none.
        seeded: for simulations: noise depends on the task's seed.
        longest: largest norm that a simulation's admission accepts; None for any. A server has its
            own limit.
    """

    clip_norm: float
    count_within: bool = False
    noise_multiplier: float = 0.0
    session_noise: float = 0.0
    seeded: bool = False
    longest: float | None = None

    @classmethod
    def of(cls, asked: DevicePrivacy | None) -> "Guard | None":
        """The protection that a task asks for; None if it asks for none.

        Raises:
            UsageError: its clip norm is not above 0.
        """
        if asked is None:
            return None
        if not asked.clip > 0:
            raise UsageError(f"Expected a clip > 0 in a private task, got {asked.clip}.")
        return cls(
            clip_norm=asked.clip,
            count_within=asked.count_within,
            noise_multiplier=0.0 if asked.in_session else asked.noise_multiplier,
            session_noise=asked.noise_multiplier if asked.in_session else 0.0,
            seeded=asked.seeded,
        )

    def share(
        self,
        *,
        members: int,
        exponent: int,
        size: int,
        round: int,  # noqa: A002 - the field's word
        key: bytes,
    ) -> MemberNoise | None:
        """The device's share of its session's noise, to add to its body; None for no noise.

        Args:
            members: on the roster that the device saw; no server states it.
            exponent: of the sum.
            size: values of the body.
            round: its number.
            key: 32 bytes, of the operating system's secure source and for this body alone; of a
                simulation, from the seed of the client's task.

        Raises:
            UsageError: the noise is out of range.
        """
        if not self.session_noise:
            return None
        try:
            sampler = member_sampler(
                clip=self.clip_norm,
                noise_multiplier=self.session_noise,
                members=members,
                exponent=exponent,
                size=size,
            )
        except ValueError as error:
            raise UsageError(str(error)) from None
        return MemberNoise(sampler, keyed(key), round)

    def protect(
        self,
        settled: RuleOutput,
        manifest: Manifest,
        *,
        run: str,
        round: int,  # noqa: A002 - the field's word
        seed: int,
        secret: Callable[[], bytes],
    ) -> RuleOutput:
        """Return the protected update, of the tensors that are floating point.

        Args:
            settled: trained values beside received ones.
            manifest: of the model.
            run: its id.
            round: its number.
            seed: of the task.
            secret: returns the device's key; called only for noise that is not seeded.

        Raises:
            UsageError: a value is NaN or infinite.
        """
        floats = [part for part in settled.parts if manifest.is_float(part.tensor)]
        ordered = sorted(floats, key=lambda part: (part.group, part.tensor))
        sent = [part.sent(DTYPES[manifest.wire_dtype(part.tensor)]) for part in ordered]
        try:
            values, within = clip(sent, self.clip_norm)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if self.noise_multiplier:
            key = key_of_seed(seed) if self.seeded else derived_key(secret(), run)
            values = add_noise(
                values,
                clip_norm=self.clip_norm,
                noise_multiplier=self.noise_multiplier,
                round=round,
                stream=keyed(key),
            )
        counted = {WITHIN: 0.5 if within else -0.5} if self.count_within else {}
        protected = [
            part._replace(values=array, less=None)
            for part, array in zip(ordered, values, strict=True)
        ]
        return replace(settled, parts=protected, scalars={**settled.scalars, **counted})
