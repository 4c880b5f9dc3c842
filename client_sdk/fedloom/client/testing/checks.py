"""A conformance check of a client, without a server.

It calls `train` and `evaluate` like an agent, several times, with tasks that differ in one setting,
and compares the results. It cannot detect problems after hours, or with other data.
"""

import pickle
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.client.agent.task_run import task_from_message
from fedloom.client.api import Client, MaskOf, Params, SliceOf, Task
from fedloom.client.testing import returned
from fedloom.client.testing.asked import RunSettings
from fedloom.client.testing.findings import CHECKS, Finding
from fedloom.client.testing.probe import OnStep, Probe, nothing, probe
from fedloom.client.testing.rounds import model_of, rounds
from fedloom.client.training.checkpoints import Interruptions
from fedloom.client.update.validate import as_update
from fedloom.protocol.errors import FedloomError, UsageError
from fedloom.protocol.user_code import message, place

STOP_AFTER_S = 0.2
PATIENCE_S = Interruptions().stop_s
"""As an agent by default waits before it ends the training process."""
LONG = 10_000_000
"""Steps or epochs of a training that ends only on request."""


def check(
    client: Client,
    model: Mapping[str, Any] | str | Path | None = None,
    *,
    run: Mapping[str, Any] | RunSettings | None = None,
    threads: int = 1,
    patience_s: float = PATIENCE_S,
    ignore: Collection[str] = (),
    on_step: OnStep = nothing,
) -> list[Finding]:
    """Find problems that a client would have with a server.

    Args:
        client: your client.
        model: the initial model, as arrays by name or a file. Default: the client's `initial`.
        run: the tables of a run.toml. Default: FedAvg with one epoch.
        threads: maximum threads of a training.
        patience_s: seconds in which training must end after a stop request. Default: that of
            `interruptions.stop_s`.
        ignore: checks to skip, such as `learning_rate` for a model that has none.
        on_step: called with what begins and, as the training reports it, with its progress.

    Returns:
        Findings, faults first; empty without problems.

    Raises:
        UsageError: there is no model, a check is unknown, or the run is invalid.
    """
    if strange := sorted(set(ignore) - CHECKS.keys()):
        raise UsageError(f"Expected checks of {', '.join(CHECKS)}, got {strange[0]!r}.")
    params = model_of(model, {"client": client})
    asked = RunSettings.of(run)
    found = _Check(client, params, asked, threads, patience_s, set(ignore), on_step).all()
    kept = {finding: None for finding in found if finding.check not in ignore}
    return sorted(kept, key=lambda finding: finding.weight != "fault")


@dataclass(frozen=True, slots=True)
class _Check:
    client: Client
    model: Params
    run: RunSettings
    threads: int
    patience_s: float
    ignore: Collection[str]
    on_step: OnStep

    def all(self) -> list[Finding]:
        fresh, found = self._copy()
        if not self.client.can_train():
            return [*found, *self._evaluate()]
        first = self._train(self.client)
        found += first.findings
        if first.probe.error is None:
            found += self._threads(first.probe)
            found += self._evaluate()
        if first.print is not None:
            found += self._same(fresh, first.print)
            if not any(finding.check == "learns" for finding in found):
                found += self._honours(first.print)
            found += self._stop()
        if not any(finding.weight == "fault" for finding in found):
            found += self._server()
        return found

    # ---- parts -------------------------------------------------------------------------------

    def _copy(self) -> tuple[Client | None, list[Finding]]:
        """A copy of the client before its first task."""
        try:
            copy: Client = pickle.loads(pickle.dumps(self.client))  # noqa: S301 - just made here
        except Exception as error:  # noqa: BLE001 - any error of its parts
            finding = Finding(
                "copies",
                f"Expected a client that can be pickled, got {type(error).__name__}: {error}. To "
                "simulate many of it, open files, locks and connections in train, not before.",
                "doubt",
            )
            try:
                return deepcopy(self.client), [finding]
            except Exception:  # noqa: BLE001 - likewise
                return None, [finding]
        return copy, []

    def _threads(self, first: Probe) -> Iterator[Finding]:
        if first.threads > self.threads:
            yield Finding(
                "threads",
                f"Expected at most {self.threads} threads in train, got {first.threads}. Set "
                "torch.set_num_threads, OMP_NUM_THREADS or n_jobs, or allow more.",
                "doubt",
            )

    def _evaluate(self) -> Iterator[Finding]:
        try:
            can = self.client.can_evaluate()
        except Exception as error:  # noqa: BLE001 - the author's code
            yield _raised("can_evaluate", error)
            return
        if not can:
            yield Finding(
                "evaluate",
                "Expected evaluate, or data for it, got none: rounds will show nothing of how "
                "good the model is on this device. Hold some examples out.",
                "doubt",
            )
            return
        given = self._params()
        self.on_step("evaluate", None)
        done = probe(lambda: self.client.evaluate(given, self._task()))
        if done.error is not None:
            yield _raised("evaluate", done.error)
            return
        yield from returned.of_evaluation(done.result)
        changed = [n for n, array in self.model.items() if not _equal(given.get(n), array)]
        if changed:
            yield Finding(
                "evaluate",
                f"Expected evaluate to leave the parameters as they are, got {changed[0]!r} "
                "changed. Measure without training.",
            )

    def _same(self, fresh: Client | None, before: bytes) -> Iterator[Finding]:
        """Train another task, then repeat the first one, also with the copy."""
        done = [
            self._train(self.client, "train, another task", seed=2, number=2),
            self._train(self.client, "train, the first task again"),
        ]
        if fresh is not None:
            done.append(self._train(fresh, "train, with a copy of the client"))
        for each in done:
            if each.probe.error is not None:
                yield _raised("train, called again,", each.probe.error)
                return
        if fresh is not None and done[2].print != before:
            yield Finding(
                "same",
                "Expected the same update from the same task, got another one. Draw everything "
                "at random from task.seed, also shuffling and dropout.",
            )
        elif done[1].print != before:
            yield Finding(
                "state",
                "Expected an update that follows from the model and the task alone, got another "
                "one after a task in between. Keep nothing between tasks, or load all of params.",
            )

    def _honours(self, before: bytes) -> Iterator[Finding]:
        train = dict(self.run.train)
        length = "steps" if train.get("steps") else "epochs"
        more = {**train, length: (train.get(length) or 1) + 2}
        if self._train(self.client, f"train, more {length}", train=more).print == before:
            yield Finding(
                "epochs",
                f"Expected another update after more {length}, got the same. Train for "
                f"task.settings.{length}.",
            )
        slower = {**train, "learning_rate": train["learning_rate"] / 16}
        if self._train(self.client, "train, another learning rate", train=slower).print == before:
            yield Finding(
                "learning_rate",
                "Expected another update with another learning rate, got the same. Use "
                "task.settings.learning_rate, or ignore this check where there is none.",
                "doubt",
            )

    def _stop(self) -> Iterator[Finding]:
        if "stop" in self.ignore:
            return
        train = dict(self.run.train)
        length = "steps" if train.get("steps") else "epochs"
        task = self._task(train={**train, length: LONG})
        self.on_step("train, which is asked to stop", None)
        done = probe(
            lambda: self.client.train(self._params(), task),
            stop=task.stop,
            stop_after_s=STOP_AFTER_S,
            patience_s=self.patience_s,
        )
        if not done.ended:
            yield Finding(
                "stop",
                f"Expected train to end within {self.patience_s:g} s of being asked to stop, got "
                "no end. Ask task.should_stop() between steps.",
            )
        elif done.error is not None:
            yield _raised("train, asked to stop,", done.error)

    def _server(self) -> Iterator[Finding]:
        """Run one whole round, which finds problems that the other checks miss."""
        try:
            client = deepcopy_or_self(self.client)
            rounds(client, self.model, num_rounds=1, run=self.run, on_step=self.on_step)
        except FedloomError as error:
            yield Finding("server", str(error))
        except Exception as error:  # noqa: BLE001 - the author's code
            yield _raised("train, in a round,", error)

    # ---- calls -------------------------------------------------------------------------------

    def _train(self, client: Client, step: str = "train", **differences: Any) -> "_Trained":
        """Train and check the result immediately, because the next task may change it."""
        task = self._task(**differences)
        self.on_step(step, None)
        with task.reporting(lambda note: self.on_step(step, note.fraction)):
            done = probe(lambda: client.train(self._params(), task))
        if done.error is not None:
            return _Trained(done, [_raised("train", done.error)], None)
        found = list(returned.of_training(done.result, self.model, self.run))
        comparable = not {finding.check for finding in found} & _SHAPELESS
        return _Trained(done, found, fingerprint(done.result) if comparable else None)

    def _task(
        self, *, seed: int = 1, number: int = 1, train: Mapping[str, Any] | None = None
    ) -> Task:
        run = self.run if train is None else replace(self.run, train=train)
        return task_from_message(run.task(number, "client", 1, seed), "client")

    def _params(self) -> Params:
        return {name: np.array(array) for name, array in self.model.items()}


_SHAPELESS = frozenset({"returns", "names", "shapes", "dtypes"})
"""Checks that fail for results without a comparable update."""


@dataclass(frozen=True, slots=True)
class _Trained:
    """A training, its findings, and the update's fingerprint; None if it is not comparable."""

    probe: Probe
    findings: list[Finding]
    print: bytes | None


def fingerprint(trained: Any) -> bytes:
    """A digest of an update's bits."""
    update = as_update(trained)
    digest = blake2b(repr(update.num_examples).encode())
    for name in sorted(update.params):
        value = update.params[name]
        arrays: list[Any] = [value]
        if isinstance(value, SliceOf):
            arrays = [value.values, np.array(value.ranges)]
        elif isinstance(value, MaskOf):
            arrays = [np.asarray(value.values)[value.mask], value.mask]
        for array in arrays:
            digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return digest.digest()


def deepcopy_or_self(client: Client) -> Client:
    """A copy of the client, or the client if it cannot be copied."""
    try:
        return deepcopy(client)
    except Exception:  # noqa: BLE001 - any error of its parts
        return client


def _equal(got: Any, array: Any) -> bool:
    return (
        isinstance(got, np.ndarray)
        and got.dtype == array.dtype
        and bool(np.array_equal(got, array, equal_nan=array.dtype.kind == "f"))
    )


def _raised(what: str, error: BaseException) -> Finding:
    return Finding("raises", f"Expected {what} to end, got {message(error)}{_at(error)}.")


def _at(error: BaseException) -> str:
    where = place(error)
    return f" ({where})" if where else ""
