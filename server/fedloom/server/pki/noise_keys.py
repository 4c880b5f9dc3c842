"""Keys of private runs, one each, from which cohorts and noise are drawn.

A key is made when its run is submitted and stored in `noise/RUN.key`, mode 0600. It must survive
crashes. It must stay secret: with it, the noise can be subtracted.

Invariant: a run's key never changes.
"""

from collections.abc import Callable
from pathlib import Path

from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.trust.noise_stream import key_of_seed, keyed, new_key
from fedloom.protocol.trust.private_files import read_private, write_private
from fedloom.server.planning.spec import RunSpec
from fedloom.strategies.privacy import Stream


class NoiseKeys:
    """The keys of a server's runs.

    Args:
        folder: of the keys; created with the first one.
        write: writes a key to its file.
    """

    def __init__(self, folder: Path, write: Callable[[Path, bytes], None] = write_private) -> None:
        self._folder = folder
        self._write = write
        self._streams: dict[str, Stream] = {}

    def make(self, run: str, spec: RunSpec) -> None:
        """Create and store the key of a new run if it needs one. Blocks."""
        settings = spec.build_privacy()
        if settings is not None and settings.noise == "secure":
            self._write(self._path(run), new_key())

    def stream(self, run: str, spec: RunSpec) -> Stream | None:
        """The random stream of a run; None if it is not private.

        Raises:
            IntegrityError: its key is missing.
        """
        settings = spec.build_privacy()
        if settings is None:
            return None
        if run not in self._streams:
            key = key_of_seed(spec.seed) if settings.noise == "seed" else self._read(run)
            self._streams[run] = keyed(key)
        return self._streams[run]

    def _read(self, run: str) -> bytes:
        try:
            return read_private(self._path(run))
        except FileNotFoundError:
            raise IntegrityError(
                f"The key of the run's noise is missing: {self._path(run)}. Restore it, or submit "
                "a new run: with another key, the privacy claim would not hold."
            ) from None

    def _path(self, run: str) -> Path:
        return self._folder / f"{run}.key"
