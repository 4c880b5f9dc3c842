"""Rounds with clients in this process, without a server or a network, in about a second.

Only the transport is left out: the agent's code runs the client and encodes updates, the server's
checks validate them, and the exact sums and the strategy's step give the next model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.client.agent.task_run import TaskRun, task_from_message
from fedloom.client.api import Client, Params
from fedloom.client.budgets import Budgets
from fedloom.client.state.store import ClientStore
from fedloom.client.testing.asked import RunSettings, folder, written
from fedloom.client.testing.probe import OnStep, nothing
from fedloom.protocol.errors import Refusal, UsageError
from fedloom.protocol.manifest import read_manifest
from fedloom.protocol.task_description import FileRef
from fedloom.protocol.tensors.container import dtype_name, read_params
from fedloom.protocol.updates.addends import add_update
from fedloom.protocol.updates.body import BodyChecker
from fedloom.protocol.updates.header import check_header
from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import Partial, State
from fedloom.strategies.metrics import weighted_mean
from fedloom.strategies.state import slots_to_arrays

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LocalRound:
    """The result of a round.

    Attributes:
        number: from 1.
        training: means over the clients, weighted by examples.
        evaluation: likewise, of the round's initial model.
        update_bytes: of all updates together.
    """

    number: int
    training: Mapping[str, float]
    evaluation: Mapping[str, float]
    update_bytes: int


@dataclass(frozen=True, slots=True)
class Played:
    """The result of several rounds.

    Attributes:
        params: the last model.
        rounds: in order.
    """

    params: Params
    rounds: Sequence[LocalRound]


def rounds(
    client: Client | Sequence[Client] | Mapping[str, Client],
    model: Mapping[str, Any] | str | Path | None = None,
    *,
    num_rounds: int = 3,
    run: Mapping[str, Any] | RunSettings | None = None,
    training_s: float | None = None,
    on_step: OnStep = nothing,
) -> Played:
    """Run rounds with clients, which train one after another.

    Args:
        client: one client, several, or several by name.
        model: the initial model, as arrays by name or a file. Default: the first client's
            `initial`.
        num_rounds: number of rounds.
        run: the tables of a run.toml. Default: FedAvg with one epoch.
        training_s: seconds after which a training is asked to return what it has; None for no
            limit.
        on_step: called with what begins and, as the training reports it, with its progress.

    Returns:
        The last model and each round's metrics. A server with this cohort and these names gives the
        same bits.

    Raises:
        UsageError: the client's result is invalid, or a server would refuse its update.
        Exception: any error of the client's code.
    """
    clients = named(client)
    asked = RunSettings.of(run)
    if (adapters := asked.low_rank()).by_products:
        raise UsageError(
            f'Expected adapters.aggregate = "factors" or "freeze_a" to test a client, got '
            f'"{adapters.aggregate}", whose products need a server. Use `fedloom simulate`.'
        )
    with folder() as place:
        playing = _Play(clients, asked, place, Budgets(training_s=training_s), on_step)
        return playing.all(model_of(model, clients), num_rounds)


def named(client: Client | Sequence[Client] | Mapping[str, Client]) -> dict[str, Client]:
    """Clients by name."""
    if isinstance(client, Mapping):
        return dict(client)
    listed = [client] if isinstance(client, Client) else list(client)
    return {f"client-{number}": each for number, each in enumerate(listed, 1)}


def model_of(model: Mapping[str, Any] | str | Path | None, clients: Mapping[str, Client]) -> Params:
    """The initial model.

    Raises:
        UsageError: neither the caller nor the first client gives one, or it is no dict of arrays
            with numbers.
    """
    if isinstance(model, str | Path):
        return read_params(Path(model), writable=True)
    if model is None:
        model = next(iter(clients.values())).initial()
    if model is None:
        raise UsageError(
            "There is no initial model. Give one, or give the client a method `initial` that "
            "returns arrays by name."
        )
    if not isinstance(model, Mapping):
        raise UsageError(
            f"Expected an initial model as a dict of arrays by name, got {type(model).__name__}. "
            "Return such a dict from `initial`."
        )
    if not model:
        raise UsageError("Expected an initial model with tensors, got none. Return some.")
    for name, array in model.items():
        dtype_name(np.asarray(array).dtype, name)
    return dict(model)


class _Play:
    def __init__(
        self,
        clients: Mapping[str, Client],
        run: RunSettings,
        place: Path,
        budgets: Budgets,
        on_step: OnStep,
    ) -> None:
        self._clients, self._run, self._place = clients, run, place
        self._budgets, self._on_step = budgets, on_step
        self._stores = {name: ClientStore(place / name) for name in clients}

    def all(self, params: Params, num_rounds: int) -> Played:
        strategy, done = self._run.built(), []
        state = strategy.init(params, self._run.seed)
        for number in range(1, num_rounds + 1):
            step = f"round {number} of {num_rounds}"
            self._on_step(step, None)
            result, params, state = self._round(number, params, state, step)
            done.append(result)
        return Played(params, done)

    def _round(
        self, number: int, params: Params, state: State, step: str
    ) -> tuple[LocalRound, Params, State]:
        strategy = self._run.built()
        model = self._place / "model"
        digest = written(params, model)
        manifest = read_manifest(model)
        sent = slots_to_arrays(strategy.sends(state)) if strategy.rule.receives else {}
        received = written(sent, self._place / "received") if sent else ""
        partial = Partial(self._run.sums(manifest), self._run.exponent(len(self._clients)))
        headers = []
        for name, store in self._stores.items():
            self._give(store, digest, model)
            if received:
                self._give(store, received, self._place / "received")
            offer = self._run.task(
                number,
                name,
                len(self._clients),
                model=FileRef(digest=digest, size_bytes=manifest.size_bytes),
                received=FileRef(digest=received) if received else None,
                memory_round=number - 1,
            )
            task = task_from_message(offer, name)
            budgets = self._budgets
            work = TaskRun(self._clients[name], task, offer, name, store, budgets=budgets)
            with task.reporting(lambda note: self._on_step(step, note.fraction)):
                header = work.run()
            body = store.body_path(self._run.name, number)
            try:
                self._check(header, body, manifest)
            except Refusal as refusal:
                raise UsageError(
                    f"A server would refuse the update of {name} in round {number} "
                    f"({refusal.code}): {refusal}"
                ) from refusal
            if header.parts:
                add_update(partial, body, header)
            headers.append(header)
            store.remove_round(self._run.name, number)
        new, state = strategy.finish(state, params, partial.drain())
        result = LocalRound(
            number,
            weighted_mean(_reports(headers, "training")),
            weighted_mean(_reports(headers, "evaluation")),
            sum(header.size_bytes for header in headers),
        )
        return result, dict(new), state

    @staticmethod
    def _give(store: ClientStore, digest: str, model: Path) -> None:
        path = store.model_path(digest)
        if not path.exists():
            path.write_bytes(model.read_bytes())

    def _check(self, header: fleet_pb2.UpdateHeader, body: Path, manifest: Any) -> None:
        """Check an update like a server; raises its refusal."""
        limits = self._run.limits(manifest)
        planned = check_header(header, limits, manifest)
        checker = BodyChecker(header, planned, limits, manifest)
        with body.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                checker.feed(chunk)
        if header.parts:
            checker.finish()


def _reports(
    headers: Sequence[fleet_pb2.UpdateHeader], what: str
) -> Iterator[tuple[int, Mapping[str, float]]]:
    for header in headers:
        if header.HasField(what):
            metrics = getattr(header, what)
            yield metrics.num_examples, dict(metrics.values)
