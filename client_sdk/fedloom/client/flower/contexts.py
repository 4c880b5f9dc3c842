"""A Flower app's context between rounds: one file per run and step, in Flower's encoding.

Invariant: a repeated task gets the context of its first execution: it reads the newest context of
earlier steps, and writes its own. Nothing is unpickled.
"""

from pathlib import Path
from typing import Any

from flwr.app import Context, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Message

from fedloom.protocol.errors import UsageError
from fedloom.protocol.flower_messages import number_of
from fedloom.protocol.trust.private_files import private_directory, write_private

FOLDER = "flower"
KEEP_STEPS = 4
"""Contexts that are kept per run: of this round and the one before."""
KEEP_RUNS = 8

Step = tuple[int, int]
"""A round, and 0 for its evaluation or message, or 1 for its training."""


class Contexts:
    """The contexts of one client.

    Args:
        state_dir: of the client.
        node_config: the same in every run.
    """

    def __init__(self, state_dir: Path, node_config: dict[str, Any]) -> None:
        self._folder = state_dir / FOLDER
        self._node_config = node_config

    def load(self, run: str, client: str, step: Step, run_config: dict[str, Any]) -> Context:
        """The context after the previous step.

        Raises:
            UsageError: its file is damaged.
        """
        before = [s for s in self._steps(run) if s < step]
        return Context(
            run_id=number_of(run),
            node_id=number_of(client),
            node_config=dict(self._node_config),
            state=self._read(self._path(run, max(before))) if before else RecordDict(),
            run_config=run_config,
        )

    def save(self, run: str, step: Step, state: RecordDict) -> None:
        """Save the context after a step; delete older steps and runs."""
        if not len(state) and not self._steps(run):
            return
        private_directory(self._folder)
        write_private(self._path(run, step), recorddict_to_proto(state).SerializeToString())
        for old in sorted(self._steps(run))[:-KEEP_STEPS]:
            self._path(run, old).unlink(missing_ok=True)
        runs: dict[str, int] = {}
        for path in self._folder.glob("*.*.*.records"):
            name = path.name.rsplit(".", 3)[0]
            runs[name] = max(runs.get(name, 0), path.stat().st_mtime_ns)
        for name in sorted(runs, key=lambda run: runs[run])[:-KEEP_RUNS]:
            for path in self._folder.glob(f"{name}.*.*.records"):
                path.unlink(missing_ok=True)

    def _path(self, run: str, step: Step) -> Path:
        return self._folder / f"{run}.{step[0]}.{step[1]}.records"

    def _steps(self, run: str) -> list[Step]:
        found = [p.name.rsplit(".", 3) for p in self._folder.glob(f"{run}.*.*.records")]
        return [(int(number), int(kind)) for name, number, kind, _ in found if name == run]

    def _read(self, path: Path) -> RecordDict:
        try:
            return recorddict_from_proto(Message.FromString(path.read_bytes()))
        except Exception as error:  # any error of the parser
            raise UsageError(
                f"Cannot read the context of a Flower app in {path}: {error}. Remove the file to "
                "begin with an empty context."
            ) from error
