"""The Flower app that SuperNodes run: a FAB (Flower App Bundle), which they get from the bridge."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from flwr.cli.build import build_fab_from_disk
from flwr.common.config import flatten_dict, get_fab_config, get_metadata_from_config
from flwr.common.constant import Status
from flwr.common.serde import user_config_to_proto
from flwr.proto.fab_pb2 import Fab
from flwr.proto.run_pb2 import Run, RunStatus
from flwr.supercore.constant import TaskType

from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import UsageError
from fedloom.protocol.flower_messages import number_of

KEEP_RUNS = 64
"""Runs whose first config is kept, of one SuperNode."""


@dataclass(frozen=True, slots=True)
class AppBundle:
    """A FAB.

    Attributes:
        content: of the file.
        digest: its SHA-256, hex.
        id: publisher and name.
        version: of the app.
        defaults: its `[tool.flwr.app.config]`, by flat names.
    """

    content: bytes
    digest: str
    id: str
    version: str
    defaults: Mapping[str, Any]

    def fab(self) -> Fab:
        """The message that a SuperNode gets."""
        return Fab(hash_str=self.digest, content=self.content)

    def run_id(self, run: str) -> int:
        """The number of a run; another one with another app, as SuperNodes keep a run's app."""
        return number_of(f"{run} {self.digest}")

    def known(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The values that a SuperNode accepts: for the names in the app's own config."""
        return {name: value for name, value in config.items() if name in self.defaults}

    def run(self, run: str, known: Mapping[str, Any]) -> Run:
        """A run for a SuperNode, with the values of its `run_config`."""
        number = self.run_id(run)
        return Run(
            run_id=number,
            fab_id=self.id,
            fab_version=self.version,
            fab_hash=self.digest,
            override_config=user_config_to_proto(dict(known)),
            status=RunStatus(status=Status.RUNNING),
            primary_task_type=TaskType.SERVER_APP,
            series_id=number,
        )


class FirstConfigs:
    """The `run_config` with which a SuperNode began each run: it keeps that until the run's end.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def check(self, run_id: int, known: Mapping[str, Any]) -> None:
        """Record the values of a run's first task; refuse others later.

        Raises:
            UsageError: a value has changed.
        """
        held: dict[str, dict[str, Any]] = {}
        with suppress(OSError, ValueError):
            held = json.loads(self._path.read_bytes())
        first = held.get(f"{run_id}")
        if first is None:
            kept = list(held.items())[1 - KEEP_RUNS :]
            write_whole(self._path, json.dumps(dict(kept) | {f"{run_id}": dict(known)}), sync=True)
        elif changed := [n for n in known if first.get(n) != known[n]]:
            names = ", ".join(sorted(changed))
            raise UsageError(
                f"The values of {names} changed in this run, but a SuperNode keeps the run_config "
                "of a run's first task. Read them from the message's config, and remove them from "
                "[tool.flwr.app.config]."
            )


def load(path: Path) -> AppBundle:
    """Read a FAB, or build it of an app's folder.

    Raises:
        UsageError: there is none, or it is not valid.
    """
    try:
        content = build_fab_from_disk(path) if path.is_dir() else path.read_bytes()
        config = get_fab_config(content)
        name, version = get_metadata_from_config(config)
        defaults = flatten_dict(config["tool"]["flwr"]["app"].get("config", {}))
    except Exception as error:  # of the file, the zip, the TOML, or flwr's checks
        raise UsageError(
            f"Expected the folder of a Flower app or a FAB file in {path}, got "
            f"{type(error).__name__}: {error}"
        ) from error
    return AppBundle(content, sha256(content).hexdigest(), name, version, defaults)
