"""The Flower app that SuperNodes run: a FAB (Flower App Bundle), which they get from the bridge."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import click
from flwr.cli.build import build_fab_from_disk
from flwr.common.config import flatten_dict, get_fab_config, get_metadata_from_config
from flwr.common.constant import Status
from flwr.common.serde import user_config_to_proto
from flwr.proto.fab_pb2 import Fab
from flwr.proto.run_pb2 import Run, RunStatus
from flwr.supercore.constant import TaskType

from fedloom.client.flower.contexts import number_of
from fedloom.protocol.errors import UsageError


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

    def run(self, run: str, config: Mapping[str, Any]) -> Run:
        """A run for a SuperNode; it accepts values only for the names in the app's config."""
        number = self.run_id(run)
        known = {name: value for name, value in config.items() if name in self.defaults}
        return Run(
            run_id=number,
            fab_id=self.id,
            fab_version=self.version,
            fab_hash=self.digest,
            override_config=user_config_to_proto(known),
            status=RunStatus(status=Status.RUNNING),
            primary_task_type=TaskType.SERVER_APP,
            series_id=number,
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
    except (OSError, ValueError, KeyError, click.ClickException) as error:
        raise UsageError(
            f"Expected the folder of a Flower app or a FAB file in {path}, got: {error}"
        ) from None
    except Exception as error:  # any error of the zip's parser
        raise UsageError(
            f"Expected a FAB file in {path}, got {type(error).__name__}: {error}."
        ) from error
    return AppBundle(content, sha256(content).hexdigest(), name, version, defaults)
