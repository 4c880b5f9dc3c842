"""The state of a simulation between two rounds, in one file that is replaced atomically.

All other state follows from the settings, so a resumed simulation ends with the same bits.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.protocol.tensors.container import read_params, write_file
from fedloom.server.engine import BestModel, RunProgress
from fedloom.server.planning.advance import TrainingState
from fedloom.strategies.privacy import Participations
from fedloom.strategies.state import state_from_arrays, state_to_arrays

_MODEL, _STATE, _HELD, _HISTORY = "model/", "state/", "held/", "history/"
_VERSION, _NOTE, _DOWNLOADED, _BEST = "version/", "note", "downloaded/", "best/"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """The state between two rounds.

    Attributes:
        progress: of the run; no round is open.
        training: the state that the next round starts from.
        best: the best model so far; None for none.
        history: selection's observations of the clients, as arrays.
        virtual_s: the virtual clock.
        wall_s: seconds spent so far.
        settings: digest of the settings that must be equal to resume.
        engine: the kernel of the rounds so far.
        reached: whether the goal of [stop] was reached.
        total_bytes: that clients sent and received; None from versions that did not count them.
        counted: client → its last committed round, if clients remember something.
        files: of the next round's tasks, as plain values; None from versions without them.
        downloaded: versions of the files that clients have, as arrays.
        flight: clients at work between two buffers, as plain values; None for none.
        versions: round → its model, for rounds with clients at work.
        origins: digests of code, data and initial values; empty from versions without them.
    """

    progress: RunProgress
    training: TrainingState
    history: Mapping[str, NDArray[Any]]
    virtual_s: float
    wall_s: float
    settings: str
    engine: str
    reached: bool
    counted: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, Any] | None = None
    downloaded: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    flight: Mapping[str, Any] | None = None
    versions: Mapping[int, Mapping[str, NDArray[Any]]] = field(default_factory=dict)
    best: Mapping[str, NDArray[Any]] | None = None
    total_bytes: int | None = None
    origins: Mapping[str, str] = field(default_factory=dict)

    def write(self, path: Path, places: Mapping[str, int]) -> None:
        """Replace the file durably.

        Args:
            path: of the file.
            places: client → its index in the population, which the file contains.
        """
        training = self.training
        held = {} if training.held is training.model else training.held
        best = {} if self.best is None or self.best is training.model else self.best
        note = {
            "progress": asdict(self.progress),
            "virtual_s": self.virtual_s,
            "wall_s": self.wall_s,
            "settings": self.settings,
            "engine": self.engine,
            "reached": self.reached,
            "total_bytes": self.total_bytes,
            "counted": sorted((places[name], n) for name, n in self.counted.items()),
            "taken": sorted(places[name] for name in training.participations.excluded),
            "took_part": sorted(
                (places[name], *seen) for name, seen in training.participations.rounds.items()
            ),
            "files": self.files,
            "flight": self.flight,
            "versions": sorted(self.versions),
            "origins": dict(self.origins),
        }
        arrays: dict[str, NDArray[Any]] = {
            _NOTE: np.frombuffer(json.dumps(note).encode(), np.uint8)
        }
        arrays |= {_MODEL + name: array for name, array in training.model.items()}
        state = state_to_arrays(training.strategy)
        arrays |= {_STATE + name: array for name, array in state.items()}
        arrays |= {_HELD + name: array for name, array in held.items()}
        arrays |= {_BEST + name: array for name, array in best.items()}
        arrays |= {_HISTORY + name: array for name, array in self.history.items()}
        arrays |= {_DOWNLOADED + name: array for name, array in self.downloaded.items()}
        for number, params in self.versions.items():
            arrays |= {f"{_VERSION}{number}/{name}": array for name, array in params.items()}
        write_file(path, arrays)

    @classmethod
    def read(cls, path: Path, settings: str, names: Sequence[str]) -> "Checkpoint | None":
        """Read a file of `write`; None if it does not exist.

        Args:
            path: of the file.
            settings: digest of the simulation's settings.
            names: of the clients, by index in the population.

        Raises:
            IntegrityError: the file is damaged.
            UsageError: it has other settings.
        """
        if not path.exists():
            return None
        arrays = {name: np.array(array) for name, array in read_params(path).items()}
        note = json.loads(arrays.pop(_NOTE).tobytes())
        if note["settings"] != settings:
            raise UsageError(
                f"{path.parent} was begun with other settings. Resume with those in its config "
                "file, or choose another folder."
            )
        found = note["progress"].pop("best", None)  # None also in older folders
        best = None if found is None else BestModel(**found)
        progress = RunProgress(**note["progress"], best=best)
        model = _under(arrays, _MODEL)
        training = TrainingState(
            model=model,
            strategy=state_from_arrays(_under(arrays, _STATE)),
            held=_under(arrays, _HELD) or model,
            trained=progress.trained,
            participations=_participations(note, names, progress.trained),
            best=best,
        )
        has_best = best is not None and best.round is not None
        return cls(
            progress=progress,
            training=training,
            best=(_under(arrays, _BEST) or model) if has_best else None,
            history=_under(arrays, _HISTORY),
            virtual_s=note["virtual_s"],
            wall_s=note["wall_s"],
            settings=settings,
            engine=note["engine"],
            reached=note["reached"],
            total_bytes=note.get("total_bytes"),
            counted={names[place]: number for place, number in note["counted"]},
            files=note.get("files"),
            downloaded=_under(arrays, _DOWNLOADED),
            flight=note.get("flight"),
            versions={n: _under(arrays, f"{_VERSION}{n}/") for n in note.get("versions", ())},
            origins=note.get("origins", {}),
        )


def _participations(note: Mapping[str, Any], names: Sequence[str], trained: int) -> Participations:
    """Read who took part; folders from before `took_part` name only who may not, in a tree."""
    rows = note.get("took_part", [(place, 1, trained) for place in note["taken"]])
    rounds = {names[place]: (number, last) for place, number, last in rows}
    return Participations(rounds, frozenset(names[place] for place in note["taken"]))


def _under(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
