"""The process of a trial: one simulation, reported to its parent after each round.

`python -m fedloom.simulation.sweep.trial` reads its order, one line of JSON, from standard input.
It writes a line for each round and waits for the answer, then a last line with the result. Other
output of the simulation goes to the log.

Invariant: if the parent has ended, the process ends at once, so that the next run of its trial has
its folder to itself.
"""

import json
import os
import signal
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, TextIO

from fedloom.cli.common.load_code import find
from fedloom.protocol.errors import FedloomError
from fedloom.simulation.output.history import Result, RoundRecord

SIMULATE = "fedloom.simulation.sweep.trial:simulate_trial"
"""The function that runs a trial; tests replace it."""

OnRound = Callable[[RoundRecord], bool]


def simulate_trial(
    experiment: str | Mapping[str, Any],
    settings: Mapping[str, Any],
    on_round: OnRound,
    out: Path | None,
) -> Result:
    """Simulate an experiment with some settings replaced.

    Args:
        experiment: its file, or its settings.
        settings: by dotted name.
        on_round: called with each round; True ends the simulation.
        out: folder for its complete output; None for none.
    """
    from fedloom.simulation import config  # noqa: PLC0415 - takes seconds
    from fedloom.simulation.api import simulate  # noqa: PLC0415

    described = config.load(experiment, settings)
    return simulate(described, out=out, on_round=lambda record, _: on_round(record), show=False)


def main() -> None:
    """Run the trial of standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the parent
    with os.fdopen(os.dup(1), "w", buffering=1) as reports:
        os.dup2(2, 1)
        lines: SimpleQueue[bytes] = SimpleQueue()
        Thread(target=_listen, args=(lines,), daemon=True).start()
        _run(json.loads(lines.get()), reports, lines)


def _listen(lines: SimpleQueue[bytes]) -> None:
    """Pass on the parent's lines; end the process when the parent has ended.

    It reads the file descriptor: a thread that waits in `sys.stdin` would hold its lock at exit.
    """
    rest = b""
    while chunk := os.read(0, 1 << 16):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            lines.put(line)
    os._exit(1)


def _run(order: Mapping[str, Any], reports: TextIO, answers: SimpleQueue[bytes]) -> None:
    def on_round(record: RoundRecord) -> bool:
        _send(reports, {"round": record.as_dict()})
        return bool(json.loads(answers.get())["stop"])

    try:
        run: Callable[..., Result] = find(order["run"])
        out = Path(order["out"]) if order["out"] else None
        result = run(order["experiment"], order["settings"], on_round, out)
    except Exception as error:  # noqa: BLE001 - any error is reported; the sweep continues
        traceback.print_exc()
        kind = "" if isinstance(error, FedloomError) else f"{type(error).__name__}: "
        _send(reports, {"failed": f"{kind}{error}"})
    else:
        _send(reports, {"done": {"engine": result.engine, "stopped": result.stopped}})


def _send(reports: TextIO, message: Mapping[str, Any]) -> None:
    try:
        reports.write(json.dumps(message) + "\n")
        reports.flush()
    except BrokenPipeError:
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
