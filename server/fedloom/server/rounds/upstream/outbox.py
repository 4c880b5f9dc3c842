"""The sums of closed rounds on disk, from before they are sent until the parent's next round.

Invariant: a sum with a header is complete and durable.
"""

from pathlib import Path

from fedloom.protocol.trust.private_files import private_directory, write_private
from fedloom.protocol.updates.site_sum import write_site_sum
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import Partial

FOLDER = "upstream"
"""In the state directory of the server."""


class SumOutbox:
    """A folder of sums, one of each run.

    Args:
        directory: created when the first sum is stored.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def body_path(self, run: str, number: int) -> Path:
        """File of a sum's body."""
        return self._directory / f"{run}.{number}.body"

    def _header_path(self, run: str, number: int) -> Path:
        return self._directory / f"{run}.{number}.header"

    def write(self, header: fleet_pb2.UpdateHeader, total: Partial) -> None:
        """Store a sum durably, described in the header; earlier ones of the run are removed.

        To write an equal sum again changes nothing.
        """
        run, number = header.task.run, header.task.round
        private_directory(self._directory)
        write_site_sum(self.body_path(run, number), total, header)
        write_private(self._header_path(run, number), header.SerializeToString(deterministic=True))
        self.discard(run, keep=number)

    def record_path(self, run: str, number: int) -> Path:
        """File of the devices in a sum, where the parent gets a digest of it."""
        return self._directory / "members" / f"{run}.{number}.json"

    def header(self, run: str, number: int) -> fleet_pb2.UpdateHeader | None:
        """The header of a stored sum; None if there is none."""
        try:
            raw = self._header_path(run, number).read_bytes()
        except FileNotFoundError:
            return None
        return fleet_pb2.UpdateHeader.FromString(raw)

    def discard(self, run: str, keep: int = 0) -> None:
        """Remove the sums of a run but that of round `keep`."""
        for path in self._directory.glob(f"{run}.*"):
            if path.name.split(".")[-2] != f"{keep}":
                path.unlink(missing_ok=True)
