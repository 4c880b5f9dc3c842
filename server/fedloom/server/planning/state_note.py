"""The ledger's note of a run's state: the files that belong to a model.

The note is JSON: `step` and `arrays` of the strategy's state; `sent`, the file that clients get
beside the model; `clip` of the next round in private runs; `config`, which the strategy asks of
clients in the next round; `noise`, a file for each round whose noise is kept; and `told` in runs
that send encoded differences: the model that clients hold, and the differences that lead to it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedloom.protocol.task_description import DifferenceRef, FileRef


@dataclass(frozen=True, slots=True, kw_only=True)
class StateNote:
    """The state that belongs to a model of a run.

    Attributes:
        step: of the strategy's state.
        arrays: digest of the strategy's slots; empty without slots.
        sent: file that clients get beside the model; None for nothing.
        clip: of the next round; None without [privacy].
        config: for clients in the next round, in addition to the run's.
        noise: round → digest of its noise, for rounds whose noise is kept.
        held: the model that clients hold; None for the run's own.
        differences: that lead to `held`, oldest first.
    """

    step: int = 0
    arrays: str = ""
    sent: FileRef | None = None
    clip: float | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    noise: Mapping[int, str] = field(default_factory=dict)
    held: FileRef | None = None
    differences: tuple[DifferenceRef, ...] = ()

    @classmethod
    def read(cls, text: str | None) -> "StateNote":
        """Read a note; None and `null` stand for a state that is not initialised yet."""
        found: dict[str, Any] = json.loads(text or "null") or {}
        told = found.get("told") or {}
        return cls(
            step=found.get("step", 0),
            arrays=found.get("arrays") or "",
            sent=_file(found.get("sent")),
            clip=found.get("clip"),
            config=found.get("config") or {},
            noise=dict(found.get("noise", ())),
            held=_file(told.get("model")),
            differences=tuple(
                DifferenceRef(base=base, file=FileRef(digest=digest, size_bytes=size))
                for base, digest, size in told.get("differences", ())
            ),
        )

    def text(self) -> str:
        """Return the note in the form of the ledger."""
        values: dict[str, Any] = {
            "step": self.step,
            "arrays": self.arrays,
            "sent": None if self.sent is None else [self.sent.digest, self.sent.size_bytes],
        }
        if self.clip is not None:
            values["clip"] = self.clip
        if self.config:
            values["config"] = dict(self.config)
        if self.noise:
            values["noise"] = sorted(self.noise.items())
        if self.held is not None:
            steps = [[d.base, d.file.digest, d.file.size_bytes] for d in self.differences]
            held = [self.held.digest, self.held.size_bytes]
            values["told"] = {"model": held, "differences": steps}
        return json.dumps(values)

    @property
    def digests(self) -> frozenset[str]:
        """Every file that the note names."""
        files = [self.sent, self.held, *(each.file for each in self.differences)]
        named = {self.arrays, *self.noise.values(), *(file.digest for file in files if file)}
        return frozenset(named - {""})


def _file(pair: list[Any] | None) -> FileRef | None:
    return None if pair is None else FileRef(digest=pair[0], size_bytes=pair[1])
