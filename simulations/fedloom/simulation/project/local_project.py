"""A folder of `fedloom new`: its training code, its run, and the data of its local clients."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import toml
from fedloom.protocol.trust.identity import check_client_name

CODE, RUN, COLUMNS, DATA = "my_client.py", "run.toml", "columns.toml", "data"


@dataclass(frozen=True, slots=True)
class LocalProject:
    """A folder that `fedloom up` runs.

    Attributes:
        folder: absolute.
        run: settings of run.toml.
        data: client name → file or folder of its data.
    """

    folder: Path
    run: Mapping[str, Any]
    data: Mapping[str, Path]

    @property
    def client(self) -> str:
        """The training code, as `fedloom client run` takes it."""
        return f"{self.folder / CODE}:client"

    @property
    def state(self) -> Path:
        """Folder of server, clients and logs."""
        return self.folder / ".fedloom"

    def digest(self, initial: Path) -> str:
        """Of all that a run depends on, data apart."""
        found = hashlib.sha256()
        for path in (initial, *(self.folder / name for name in (CODE, RUN, COLUMNS))):
            found.update(path.read_bytes() if path.exists() else b"")
            found.update(b"\0")
        return found.hexdigest()


def read_project(folder: Path) -> LocalProject:
    """Read a folder.

    Raises:
        UsageError: it lacks something, or its run waits for more clients than it has.
    """
    folder = folder.absolute()
    for name in (CODE, RUN, DATA):
        if not (folder / name).exists():
            raise UsageError(
                f"Expected a folder of `fedloom new` with {CODE}, {RUN} and {DATA}/, got no {name} "
                f"in {folder}. Make one with `fedloom new NAME`, then `fedloom up NAME`."
            )
    data: dict[str, Path] = {}
    for path in sorted((folder / DATA).iterdir()):
        if path.name.startswith("."):
            continue
        if path.stem in data:
            raise UsageError(
                f"Expected one file for each client in {folder / DATA}, got {data[path.stem].name} "
                f"and {path.name}. Rename one, or make a folder {path.stem} of them."
            )
        try:
            data[check_client_name(path.stem)] = path
        except UsageError as error:
            raise UsageError(f"{path}: files in {DATA}/ name their clients. {error}") from None
    run = toml.read(folder / RUN, "a run's settings")
    cohort = run.get("cohort")
    goal = cohort.get("goal") if isinstance(cohort, Mapping) else None
    if isinstance(goal, int) and goal > len(data):
        raise UsageError(
            f"{folder / RUN} waits for {goal} clients (cohort.goal), but {folder / DATA} has "
            f"{len(data)} files. Add files, or lower the goal."
        )
    return LocalProject(folder, run, data)
