"""Differential privacy of an update on the device: clip it, count it, add noise to it.

Agent and simulator share this, so that the same training sends the same bits.

Invariants: the clipped norm is of the values as they are sent, over all parts together; it does not
depend on the order of the parts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedloom.client.training.client_rule import RuleOutput
from fedloom.protocol.errors import UsageError
from fedloom.protocol.task_description import DevicePrivacy
from fedloom.protocol.trust.noise_stream import derived_key, key_of_seed, keyed
from fedloom.strategies.privacy import add_noise, clip
from fedloom.strategies.privacy.release import WITHIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Clipping and noise of an update.

    Attributes:
        clip_norm: largest norm of the whole update; a longer one is scaled down to it.
        count_within: also send whether the update was within `clip_norm`.
        noise_multiplier: of the device's own noise; 0 for none.
        seeded: for simulations: noise depends on the task's seed.
        longest: largest norm that a simulation's admission accepts; None for any. A server has its
            own limit.
    """

    clip_norm: float
    count_within: bool = False
    noise_multiplier: float = 0.0
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
            noise_multiplier=asked.noise_multiplier,
            seeded=asked.seeded,
        )

    def protect(
        self,
        settled: RuleOutput,
        dtype_of: Callable[[str], np.dtype[Any]],
        *,
        run: str,
        round: int,  # noqa: A002 - the field's word
        seed: int,
        secret: Callable[[], bytes],
    ) -> RuleOutput:
        """Return the protected update.

        Args:
            settled: trained values beside received ones.
            dtype_of: returns the dtype in which a tensor's differences are sent.
            run: its id.
            round: its number.
            seed: of the task.
            secret: returns the device's key; called only for noise that is not seeded.

        Raises:
            UsageError: a value is NaN or infinite.
        """
        ordered = sorted(settled.parts, key=lambda part: (part.group, part.tensor))
        try:
            values, within = clip(
                [part.sent(dtype_of(part.tensor)) for part in ordered], self.clip_norm
            )
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
            replace(part, values=array, less=None)
            for part, array in zip(ordered, values, strict=True)
        ]
        return replace(settled, parts=protected, scalars={**settled.scalars, **counted})
