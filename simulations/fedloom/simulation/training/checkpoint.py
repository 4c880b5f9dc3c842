"""Where a simulation stands after a committed round, in one file that is replaced as a whole.

Everything else a simulation does follows from its settings and from this, so it goes on to the same
bits.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.protocol.tensors.container import read_params, write_file
from fedloom.server.engine import RunProgress
from fedloom.strategies import State
from fedloom.strategies.state import state_from_arrays, state_to_arrays

_MODEL, _STATE, _HELD, _HISTORY = "model/", "state/", "held/", "history/"
_VERSION, _NOTE = "version/", "note"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """Between two rounds.

    Attributes:
        progress: of the run; no round is open.
        params: the model.
        state: of the strategy.
        history: what selection knows of the clients, as arrays.
        virtual_s: the virtual clock.
        wall_s: seconds spent so far.
        settings: digest of what must be the same to go on.
        engine: the kernel that the results so far are from.
        reached: the goal of [stop] was reached.
        counted: client → its last committed round, where the client rule remembers.
        flight: who is at work between two buffers, as plain values; None for nobody.
        versions: round → the model that its clients were given, of those who are at work.
        taken: who took part in the tree that has begun, where a run is private by one.
        held: the model that clients hold, where it is not quite `params`; empty where it is.
    """

    progress: RunProgress
    params: Mapping[str, NDArray[Any]]
    state: State
    history: Mapping[str, NDArray[Any]]
    virtual_s: float
    wall_s: float
    settings: str
    engine: str
    reached: bool
    counted: Mapping[int, int] = field(default_factory=dict)
    taken: frozenset[int] = frozenset()
    flight: Mapping[str, Any] | None = None
    versions: Mapping[int, Mapping[str, NDArray[Any]]] = field(default_factory=dict)
    held: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Replace the file, durably."""
        note = {
            "progress": asdict(self.progress),
            "virtual_s": self.virtual_s,
            "wall_s": self.wall_s,
            "settings": self.settings,
            "engine": self.engine,
            "reached": self.reached,
            "counted": sorted(self.counted.items()),
            "taken": sorted(self.taken),
            "flight": self.flight,
            "versions": sorted(self.versions),
        }
        arrays: dict[str, NDArray[Any]] = {
            _NOTE: np.frombuffer(json.dumps(note).encode(), np.uint8)
        }
        arrays |= {_MODEL + name: array for name, array in self.params.items()}
        arrays |= {_STATE + name: array for name, array in state_to_arrays(self.state).items()}
        arrays |= {_HELD + name: array for name, array in self.held.items()}
        arrays |= {_HISTORY + name: array for name, array in self.history.items()}
        for number, params in self.versions.items():
            arrays |= {f"{_VERSION}{number}/{name}": array for name, array in params.items()}
        write_file(path, arrays)

    @classmethod
    def read(cls, path: Path, settings: str) -> "Checkpoint | None":
        """Read a file that `write` made; None where nothing got as far as to write one.

        Raises:
            IntegrityError: its bytes are not what they were.
            UsageError: it is of other settings.
        """
        if not path.exists():
            return None
        arrays = {name: np.array(array) for name, array in read_params(path).items()}
        note = json.loads(arrays.pop(_NOTE).tobytes())
        if note["settings"] != settings:
            raise UsageError(
                f"Expected the settings that {path.parent} was begun with, got others. Resume with "
                "those in its config file, or choose another --out."
            )
        return cls(
            progress=RunProgress(**note["progress"]),
            params=_under(arrays, _MODEL),
            state=state_from_arrays(_under(arrays, _STATE)),
            held=_under(arrays, _HELD),
            history=_under(arrays, _HISTORY),
            virtual_s=note["virtual_s"],
            wall_s=note["wall_s"],
            settings=settings,
            engine=note["engine"],
            reached=note["reached"],
            counted=dict(note["counted"]),
            taken=frozenset(note["taken"]),
            flight=note.get("flight"),
            versions={n: _under(arrays, f"{_VERSION}{n}/") for n in note.get("versions", ())},
        )


def _under(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
