"""Where a cluster is: its folder and its ports, all of loopback."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from fedloom.protocol.errors import UsageError

FILE = "cluster.json"
"""Marks a folder that `make cluster-stop` may remove."""
DEFAULT = Path("out/cluster")
"""The folder of a cluster, below the checkout."""
REPLICAS = ("fl-1", "fl-2", "fl-3")
_OF_A_REPLICA = ("fleet", "enrolment", "console", "health")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a cluster.

    Attributes:
        port: of haproxy; the others follow: the next is PostgreSQL's, then the S3 server's, and
            from 10 later on four of each replica.
        num_devices: that train.
        run: id of the run; empty before it is submitted.
    """

    port: int
    num_devices: int
    run: str = ""

    def __post_init__(self) -> None:
        last = 65535 - 10 * len(REPLICAS) - len(_OF_A_REPLICA)
        if not 1024 <= self.port <= last:
            raise UsageError(f"Expected PORT from 1024 to {last}, got {self.port}.")
        if not 1 <= self.num_devices <= 100:
            raise UsageError(f"Expected DEVICES from 1 to 100, got {self.num_devices}.")

    @property
    def database_port(self) -> int:
        """PostgreSQL's."""
        return self.port + 1

    @property
    def store_port(self) -> int:
        """The S3 server's."""
        return self.port + 2

    def replica_ports(self, name: str) -> dict[str, int]:
        """A replica's ports, by their setting in server.toml."""
        first = self.port + 10 * (1 + REPLICAS.index(name))
        return {setting: first + offset for offset, setting in enumerate(_OF_A_REPLICA)}

    @property
    def ports(self) -> dict[int, str]:
        """Every port, with what it is for."""
        found = {
            self.port: "haproxy",
            self.database_port: "PostgreSQL",
            self.store_port: "the S3 server",
        }
        for name in REPLICAS:
            for setting, port in self.replica_ports(name).items():
                found[port] = f"{setting} of {name}"
        return found

    def write(self, folder: Path) -> None:
        """Write them into the cluster's folder."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Those of the cluster in a folder.

        Raises:
            UsageError: there is none.
        """
        try:
            return cls(**json.loads((folder / FILE).read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            raise UsageError(
                f"There is no cluster in {folder}: `make cluster` starts one."
            ) from None
