"""Check of the training code: one epoch, or the first seconds of it, without a server."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedloom.client.api import Client
from fedloom.client.doctor.finding import CheckResult, fail, ok, skip
from fedloom.client.testing import rounds
from fedloom.protocol.errors import FedloomError
from fedloom.protocol.user_code import summarised

ONE_EPOCH = {"train": {"epochs": 1, "batch_size": 32, "learning_rate": 0.01}}
"""As most runs ask: clients by hand often know epochs alone."""
TRIAL_S = 10.0
"""After this time the training is asked to return what it has, so that much data take no longer."""


def code(
    make: Callable[[], Client] | None,
    model: Path | None,
    state_dir: Path | None,
    run: Mapping[str, Any] | None = None,
) -> CheckResult:
    """Load a client and train one epoch, or for `TRIAL_S`.

    Args:
        make: loads it; None if no code was given.
        model: file of the initial model; otherwise the client's `initial`, or else the last model
            that this device received.
        state_dir: of the client.
        run: tables of a run.toml; None for `ONE_EPOCH`.
    """
    if make is None:
        return skip("code", "no code was given", "give --code FILE.py:NAME to try one epoch")
    try:
        client = make()
        start = model or (_last_model(state_dir) if client.initial() is None else None)
        if start is None and client.initial() is None:
            return skip(
                "code", "it loads, but there is no model for a trial", "give --model FILE, or give "
                "the client a method `initial`"
            )  # fmt: skip
        if not client.can_train():
            return ok("code", "it loads, and only evaluates")
        played = rounds(client, start, num_rounds=1, run=run or ONE_EPOCH, training_s=TRIAL_S)
    except FedloomError as error:
        return fail("code", str(error), "`fedloom client test` shows details")
    except Exception as error:  # noqa: BLE001 - the user's code
        return fail("code", summarised(error), "correct it; `fedloom client test` shows details")
    measures = " ".join(f"{k} {v:.4g}" for k, v in played.rounds[-1].training.items())
    said = f"a trial epoch made an update of {played.rounds[-1].update_bytes:,} bytes"
    return ok("code", said + (f", {measures}" * bool(measures)))


def _last_model(state_dir: Path | None) -> Path | None:
    if state_dir is None:
        return None
    models = sorted(
        (state_dir / "models").glob("*.safetensors"), key=lambda p: p.stat().st_mtime_ns
    )
    return models[-1] if models else None
