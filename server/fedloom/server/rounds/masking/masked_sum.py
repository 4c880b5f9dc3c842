"""The sum of a masked round: the sums of its sessions, each in a file until the round is over.

Invariants: the sum of a session is on disk before the ledger says that the session is done. Sums
are of integers, so the order of sessions does not matter.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fedloom.protocol.errors import IntegrityError
from fedloom.protocol.tensors.container import read_params, write_file
from fedloom.protocol.tensors.file_arrays import Scratch
from fedloom.server.engine import SessionState
from fedloom.server.ledger.rows import AcceptedRow
from fedloom.server.planning.masked_form import MaskedForm
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.planning.round_result import RoundResult
from fedloom.server.rounds.context import RoundsContext
from fedloom.server.rounds.masking.unmask import SessionSum
from fedloom.server.rounds.round_sum import RoundSum, report_of
from fedloom.strategies import Partial
from fedloom.strategies.masking.over_sessions import SessionUpdates


class MaskedSum(RoundSum):
    """The sum of one masked round.

    Attributes:
        form: of the bodies of whole models.
    """

    def __init__(self, plan: RoundPlan, context: RoundsContext) -> None:
        super().__init__(plan, context)
        self.form = MaskedForm.of(plan)

    async def restore(self, accepted: Iterable[AcceptedRow]) -> None:
        """Nothing: the sums of sessions are read when the round closes."""

    def add(self, client: str, file: str, staleness: int = 0) -> None:
        """Nothing: an update counts in the sum of its session."""

    def path(self, session: int) -> Path:
        """The file of a session's sum."""
        run, number = self._plan.key
        return self._context.spool.path(f"{run}.{number}..session-{session}")

    def write(self, session: int, found: SessionSum) -> None:
        """Store the sum of a session durably."""
        arrays, header = found.total.arrays()
        text = json.dumps({"partial": header, "words": dict(found.words)})
        note = np.frombuffer(text.encode(), np.uint8)
        write_file(self.path(session), {**arrays, "note": note})
        self._context.spool.keep(self.path(session).name, *self._plan.key)

    def _read(self, session: int) -> SessionSum:
        self._context.spool.fetch(self.path(session).name)
        try:
            arrays = read_params(self.path(session), writable=True)  # a large one stays mapped
        except FileNotFoundError:
            raise IntegrityError(
                f"The sum of session {session} of round {self._plan.number} is missing in the "
                "spool."
            ) from None
        note = json.loads(arrays.pop("note").tobytes())
        total = Partial.from_arrays(arrays, note["partial"])
        return SessionSum(total=total, words=note["words"])

    def _result(self, accepted: Sequence[AcceptedRow]) -> RoundResult:
        plan, form = self._plan, self.form
        total, words, sessions = form.empty.empty(), [], []
        over_sessions = plan.spec.needs == "sessions" and bool(form.specs)
        for number, each in enumerate(self._context.ledger.sessions(*plan.key)):
            if each.state is SessionState.DONE:
                found = self._read(number)
                total.merge(found.total)
                words.append(found.words)
                if over_sessions:
                    sessions.append((found.total, form.weight(found.words, found.total.count)))
        return RoundResult(
            number=plan.number,
            kind=plan.kind,
            reports=[report_of(row) for row in accepted],
            total=total,
            words={name: sum(each[name] for each in words) for name in form.words.names},
            updates=SessionUpdates(sessions) if over_sessions else None,
            keep=Scratch(self._checkpoint.parent).keep,
        )

    def clean(self, files: Iterable[str] | None = None) -> None:  # noqa: ARG002 - all at once
        """Delete the sums, the bodies and the lists of a round that is over."""
        self._context.spool.discard_round(*self._plan.key)
