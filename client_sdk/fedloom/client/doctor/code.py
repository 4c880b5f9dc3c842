"""Check of the training code: one trial step, without a server."""

import traceback
from collections.abc import Callable
from pathlib import Path

from fedloom.client.api import Client
from fedloom.client.doctor.finding import CheckResult, fail, ok, skip
from fedloom.client.testing import rounds
from fedloom.protocol.errors import FedloomError

ONE_STEP = {"train": {"steps": 1, "batch_size": 8, "learning_rate": 0.01}}


def code(
    make: Callable[[], Client] | None, model: Path | None, state_dir: Path | None
) -> CheckResult:
    """Load a client and train one step.

    Args:
        make: loads it; None if no code was given.
        model: file of the initial model; otherwise the client's `initial`, or else the last model
            that this device received.
        state_dir: of the client.
    """
    if make is None:
        return skip("code", "no code was given", "give --code FILE.py:NAME to try one step")
    try:
        client = make()
        start = model or (_last_model(state_dir) if client.initial() is None else None)
        if start is None and client.initial() is None:
            return skip(
                "code", "it loads, but there is no model for a step", "give --model FILE, or give "
                "the client a method `initial`"
            )  # fmt: skip
        if not client.can_train():
            return ok("code", "it loads, and only evaluates")
        played = rounds(client, start, num_rounds=1, run=ONE_STEP)
    except FedloomError as error:
        return fail("code", str(error), "`fedloom client test` shows details")
    except Exception as error:  # noqa: BLE001 - the user's code
        return fail("code", f"{type(error).__name__}: {error} ({_where(error)})",
                    "correct it; `fedloom client test` shows details")  # fmt: skip
    measures = " ".join(f"{k} {v:.4g}" for k, v in played.rounds[-1].training.items())
    size = played.rounds[-1].update_bytes
    return ok(
        "code", f"one step made an update of {size:,} bytes" + (f", {measures}" * bool(measures))
    )


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if "fedloom" not in Path(frame.filename).parts] or frames
    return f"{Path(theirs[-1].filename).name}, line {theirs[-1].lineno}"


def _last_model(state_dir: Path | None) -> Path | None:
    if state_dir is None:
        return None
    models = sorted(
        (state_dir / "models").glob("*.safetensors"), key=lambda p: p.stat().st_mtime_ns
    )
    return models[-1] if models else None
