"""The secrets of private runs: one key each, that draws cohorts and makes noise.

A key is made when its run is submitted and lies in `noise/RUN.key`, mode 0600. It decides what is
released, so it must outlive every crash; whoever reads it can take the noise away.

Invariant: a run that has begun never gets another key.
"""

from pathlib import Path

from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.trust.noise_stream import key_of_seed, keyed, new_key
from fedloom.protocol.trust.private_files import read_private, write_private
from fedloom.server.planning.spec import RunSpec
from fedloom.strategies.privacy import Stream


class NoiseKeys:
    """The keys of a server's runs.

    Args:
        folder: where they lie; made when there is a first one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._streams: dict[str, Stream] = {}

    def make(self, run: str, spec: RunSpec) -> None:
        """Make the key of a new run, durably, if it needs one. Blocks."""
        settings = spec.build_privacy()
        if settings is not None and settings.noise == "secure":
            write_private(self._path(run), new_key())

    def stream(self, run: str, spec: RunSpec) -> Stream | None:
        """The streams of a run; None where it has no privacy.

        Raises:
            IntegrityError: its key is gone.
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
                f"Expected the key of the run's noise in {self._path(run)}, got no such file. "
                "Restore it, or submit a new run: with another key the claim would not hold."
            ) from None

    def _path(self, run: str) -> Path:
        return self._folder / f"{run}.key"
