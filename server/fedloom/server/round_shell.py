"""One round in the world: the engine's events come from clients and clocks, its effects are done.

The engine decides (fedloom.server.engine.round); this shell tells it what happened, carries out
what it asks for in that order, and keeps the order in which things become durable:

    cohort stored → offers sent → updates accepted → round closing → model stored → round committed

Invariants: an offer is sent only to a member that the ledger holds; the sum that is committed is
of exactly the updates that the ledger held when the round left `reporting`.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from fedloom.protocol.errors import Code, FedloomError, Refusal
from fedloom.protocol.faults import crossing
from fedloom.protocol.manifest import Manifest
from fedloom.protocol.updates import Limits, PlannedPart, check_header
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server import fold
from fedloom.server.engine import (
    Abandon,
    Abort,
    Attended,
    ClientFailed,
    Close,
    CommitFailed,
    Committed,
    Left,
    Offer,
    OfferAccepted,
    OfferDeclined,
    Opened,
    Phase,
    Recruited,
    Round,
    RoundEffect,
    RoundEvent,
    RoundKind,
    RoundState,
    UpdateAccepted,
    UpdateRefused,
    Wake,
    Withdraw,
    uniform,
)
from fedloom.server.fleet import Listener
from fedloom.server.ledger import AcceptedUpdate, Row, check_same
from fedloom.server.spec import RunSpec
from fedloom.server.world import World
from fedloom.strategies import State, metrics, state_from_arrays, state_to_arrays

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """What a round is, before anything happens in it.

    Attributes:
        run: id.
        number: from 1, rising with every round opened.
        kind: training or evaluation.
        trained: training rounds committed before this one.
        model: digest of the model that it starts from.
        strategy_state: the ledger's note of the strategy's state, or None at the start.
    """

    run: str
    number: int
    kind: RoundKind
    trained: int
    spec: RunSpec
    model: str
    strategy_state: str | None
    manifest: Manifest
    limits: Limits


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a round ended; `model` is None when it was abandoned.

    Attributes:
        fault: trying again would fail again.
    """

    model: str | None
    strategy_state: str | None
    reason: str = ""
    fault: bool = False


class RoundShell:
    """Drives one round.

    Args:
        plan: what the round is.
        world: shared parts.
        owner: the run, as the fleet knows it.
        ended: called once, when the round is over.
    """

    def __init__(
        self, plan: RoundPlan, world: World, owner: Listener, ended: Callable[[Outcome], None]
    ) -> None:
        self.plan = plan
        self._world = world
        self._owner = owner
        self._ended = ended
        self._key = (plan.run, plan.number)
        self._timer: asyncio.TimerHandle | None = None
        self._effects: asyncio.Queue[RoundEffect] = asyncio.Queue()
        self._worker: asyncio.Task[None] | None = None
        self._folds: set[asyncio.Task[None]] = set()
        self._fold_error: Exception | None = None
        self._stored = False  # the ledger has a row of this round
        self._folder = fold.Folder(self._empty(), set())
        self.engine: Round

    # ---- life --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Select from whoever is available."""
        self.engine = Round(
            self.plan.spec.round_config(),
            select=uniform(self.plan.spec.seed, self.plan.number),
            now=self._now(),
            available=self._world.fleet.available(),
        )
        self._start()

    async def restore(self, row: Row, *, paused: bool) -> None:
        """Go on with a round that was open when the server stopped."""
        world = self._world
        members = await world.in_ledger(world.ledger.cohort, *self._key)
        accepted = await world.in_ledger(world.ledger.accepted, *self._key)
        config = self.plan.spec.round_config()
        # Time that the server was down is not the clients' fault: they get their patience anew.
        left_s = max(row["deadline_at"] - time.time(), config.patience_s)
        self.engine = Round.restore(
            config,
            select=uniform(self.plan.spec.seed, self.plan.number),
            state=RoundState(row["state"]),
            cohort={m["client"]: Phase(m["phase"]) for m in members},
            accepted={a["client"] for a in accepted},
            deadline_left_s=left_s,
            now=self._now(),
            available=world.fleet.available(),
            paused=paused,
        )
        self._stored = True
        self._folder = await world.in_fold(fold.restore, self._checkpoint, self._empty)
        for update in accepted:
            self._fold_soon(update)
        self._start()

    def _start(self) -> None:
        self._worker = asyncio.ensure_future(self._work())
        self.feed(Wake())

    async def stop(self) -> None:
        """Leave the round as it is; a later start goes on with it."""
        if self._timer is not None:
            self._timer.cancel()
        for task in (self._worker, *self._folds):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    # ---- events ------------------------------------------------------------------------------

    def feed(self, event: RoundEvent) -> None:
        """Tell the engine what happened and queue what it asks for.

        Raises:
            OperatorRefused: the operator's command does not fit.
        """
        effects = self.engine.handle(event, self._now())
        for effect in effects:
            if isinstance(effect, Withdraw):
                self._withdraw(effect.client, effect.reason)
            elif isinstance(effect, Offer) and not self._occupy(effect.client):
                asyncio.get_running_loop().call_soon(self.feed, Left(effect.client))
            else:
                self._effects.put_nowait(effect)
        self._set_timer()

    def _occupy(self, client: str) -> bool:
        return self._world.fleet.occupy(client, self._key, self._owner)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at = self.engine.wake_at
        loop = asyncio.get_running_loop()
        self._timer = None if at is None else loop.call_at(at, self.feed, Wake())

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def claims(self, client: str) -> bool:
        """Does the round wait for this client?"""
        open_for = (Phase.OFFERED, Phase.TRAINING, Phase.LOST)
        reporting = self.engine.state is RoundState.REPORTING
        return reporting and self.engine.phases.get(client) in open_for

    def client_replied(self, client: str, reply: fleet_pb2.OfferReply) -> None:
        """A client took or declined its offer."""
        if reply.accepted:
            self.feed(OfferAccepted(client))
        else:
            self._note(client, Phase.DECLINED, reply.reason)
            self.feed(OfferDeclined(client, reply.reason))
            self._world.fleet.free(client, self._key)

    def client_failed(self, client: str, reason: str) -> None:
        """A client gave up."""
        log.warning("%s gave up on round %d: %s", client, self.plan.number, reason)
        self._note(client, Phase.FAILED, reason)
        self.feed(ClientFailed(client, reason))
        self._world.fleet.free(client, self._key)

    def client_available(self, client: str) -> None:
        """A client is connected and idle."""
        self.feed(Attended(client))

    def client_left(self, client: str) -> None:
        """A client's stream ended, or another run took it."""
        self.feed(Left(client))

    def _note(self, client: str, phase: Phase, reason: str) -> None:
        """Store how a member ended, behind what is queued already."""
        if self.claims(client):
            self._later(self._world.ledger.set_phase, *self._key, client, phase.value, reason[:500])

    def _later(self, call: Callable[..., Any], *args: Any) -> None:
        task = asyncio.ensure_future(self._world.in_ledger(call, *args))
        self._folds.add(task)
        task.add_done_callback(self._folds.discard)

    # ---- uploads -----------------------------------------------------------------------------

    def admit(self, header: fleet_pb2.UpdateHeader) -> list[PlannedPart]:
        """May this client upload this update now?

        Raises:
            Refusal: not in the cohort, closed, another model, or a bad header.
        """
        self.check_open(header.client)
        if header.model_digest != self.plan.model:
            raise Refusal(
                Code.WRONG_MODEL,
                f"Expected an update of the model {self.plan.model[:12]}, "
                f"got one of {header.model_digest[:12]!r}.",
            )
        return check_header(header, self.plan.limits, self.plan.manifest)

    def check_open(self, client: str) -> None:
        """Would an update of this client be accepted now?

        Raises:
            Refusal: NOT_IN_COHORT or ROUND_CLOSED.
        """
        code = self.engine.refusal_for(client)
        if code is not None:
            raise Refusal(
                code,
                f"Expected a member of the cohort of round {self.plan.number} while it is open, "
                f"got {client!r} while it is {self.engine.state.value}.",
            )

    def refused(self, client: str, refusal: Refusal) -> None:
        """A client's update was turned away."""
        if refusal.code.blames_update and self.claims(client):
            self._note(client, Phase.REFUSED, f"{refusal.code}: {refusal}")
            self.feed(UpdateRefused(client, refusal.code))
            self._world.fleet.free(client, self._key)

    async def accept(self, update: AcceptedUpdate) -> bool:
        """Make an update count; its bytes are synced. True unless it was accepted before.

        Raises:
            Refusal: the round has closed, or another update was accepted.
        """
        crossing("accept.before")
        world = self._world
        first = await world.in_ledger(world.ledger.accept, update, self.plan.spec.capacity)
        crossing("accept.after")
        if first:
            self._fold_soon({"client": update.client, "file": update.file})
            self.feed(UpdateAccepted(update.client))
            world.fleet.free(update.client, self._key)
        return first

    async def accepted_before(self, header: fleet_pb2.UpdateHeader, identity: str) -> bool:
        """Was this very update accepted already?

        Raises:
            Refusal: another one was.
        """
        world = self._world
        known = await world.in_ledger(world.ledger.find_update, *self._key, header.client)
        if known is not None:
            check_same(known["identity"], identity)
        return known is not None

    # ---- folding -----------------------------------------------------------------------------

    @property
    def _checkpoint(self) -> Any:
        return self._world.spool.path(f"{self.plan.run}.{self.plan.number}..sum")

    def _empty(self) -> Any:
        spec = self.plan.spec
        return fold.empty_partial(
            self.plan.manifest, tuple(self.plan.limits.groups), spec.exponent()
        )

    def _fold_soon(self, update: Row) -> None:
        task = asyncio.ensure_future(self._fold(update["client"], update["file"]))
        self._folds.add(task)
        task.add_done_callback(self._folds.discard)

    async def _fold(self, client: str, file: str) -> None:
        world = self._world
        try:
            done = await world.in_fold(self._fold_in_thread, client, file)
        except Exception as error:
            log.exception("round %d: the update of %s does not fold", self.plan.number, client)
            self._fold_error = error
            return
        for name in done:
            world.spool.release(name)

    def _fold_in_thread(self, client: str, file: str) -> list[str]:
        if not file or client in self._folder.folded:
            return []
        spool = self._world.spool
        due = self._folder.fold(client, spool.path(file), spool.header(file))
        crossing("fold.after")
        return self._folder.save(self._checkpoint) if due else []

    # ---- effects -----------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            effect = await self._effects.get()
            try:
                over = await self._perform(effect)
            except Exception as error:
                log.exception("round %d of %s", self.plan.number, self.plan.run)
                over = await self._fail(error)
            if over is not None:
                self._finish(over)
                return

    async def _perform(self, effect: RoundEffect) -> Outcome | None:
        world = self._world
        match effect:
            case Opened(cohort):
                await world.in_ledger(world.ledger.open_round, self._row(), cohort)
                self._stored = True
                crossing("round.opened")
                log.info(
                    "round %d of %s opened for %d", self.plan.number, self.plan.run, len(cohort)
                )
            case Recruited(client):
                await world.in_ledger(world.ledger.recruit, *self._key, client)
            case Offer(client):
                if self.engine.state is RoundState.REPORTING:
                    world.fleet.send(client, fleet_pb2.ServerMessage(offer=self.task(client)))
                    crossing("offer.sent")
            case Close():
                return await self._close()
            case Abandon(reason):
                return await self._abandon(reason, fault=False)
        return None

    def _withdraw(self, client: str, reason: str) -> None:
        message = fleet_pb2.ServerMessage(
            withdraw=fleet_pb2.Withdraw(task=self._task_key(), reason=reason)
        )
        self._world.fleet.send(client, message)
        self._world.fleet.free(client, self._key)

    async def _close(self) -> Outcome:
        world = self._world
        updates = await world.in_ledger(world.ledger.close_round, *self._key)
        crossing("round.closing")
        for update in updates:
            if update["client"] not in self._folder.folded:
                self._fold_soon(update)
        while self._folds:
            await asyncio.wait(self._folds)
        if self._fold_error is not None:
            raise self._fold_error
        model, state, size = await world.in_fold(self._finish_sum, updates)
        result = {
            "model_out": model,
            "strategy_state": state,
            "training": _mean(updates, "training"),
            "evaluation": _mean(updates, "evaluation"),
            "counts": self.plan.kind is RoundKind.TRAIN,
        }
        await world.in_ledger(world.ledger.commit_round, *self._key, result, size)
        crossing("commit.ledger")
        self.feed(Committed())
        self._clean()
        log.info(
            "round %d of %s committed %s from %d updates",
            self.plan.number, self.plan.run, model[:12], len(updates),
        )  # fmt: skip
        return Outcome(model, state)

    def _finish_sum(self, updates: list[dict[str, Any]]) -> tuple[str, str | None, int]:
        """In the fold's thread: the strategy's step, then the new model on disk."""
        plan, models = self.plan, self._world.models
        if plan.kind is RoundKind.EVALUATE or not any(u["file"] for u in updates):
            return plan.model, plan.strategy_state, plan.manifest.size_bytes
        strategy = plan.spec.build_strategy()
        params = models.params(plan.model)
        state = self._load_state(params)
        new, state = strategy.finish(state, params, self._folder.partial.drain())
        crossing("commit.model")
        digest = models.save(new, plan.manifest.dtypes)
        note = self._save_state(state)
        crossing("commit.stored")
        return digest, note, models.path(digest).stat().st_size

    def _load_state(self, params: Any) -> State:
        if self.plan.strategy_state is None:
            return self.plan.spec.build_strategy().init(params)
        note = json.loads(self.plan.strategy_state)
        if not note["arrays"]:
            return State(step=note["step"], slots={})
        return state_from_arrays(self._world.models.params(note["arrays"]))

    def _save_state(self, state: State) -> str:
        arrays = self._world.models.save(state_to_arrays(state), {}) if state.slots else ""
        return json.dumps({"step": state.step, "arrays": arrays})

    async def _fail(self, error: Exception) -> Outcome:
        reason = (
            f"{type(error).__name__}: {error}"
            if not isinstance(error, FedloomError)
            else f"{error}"
        )
        self.feed(Abort(reason) if self.engine.is_open else CommitFailed(reason))
        return await self._abandon(reason, fault=True)

    async def _abandon(self, reason: str, *, fault: bool) -> Outcome:
        world = self._world
        if self._stored:
            await world.in_ledger(world.ledger.abandon_round, *self._key, reason)
        self._clean()
        log.warning("round %d of %s abandoned: %s", self.plan.number, self.plan.run, reason)
        return Outcome(None, None, reason, fault)

    def _clean(self) -> None:
        self._world.spool.path(self._checkpoint.name).unlink(missing_ok=True)
        self._world.spool.release_round(*self._key)

    def _finish(self, outcome: Outcome) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._ended(outcome)

    # ---- views -------------------------------------------------------------------------------

    def deadline_at(self) -> float | None:
        """Seconds since the epoch of the deadline, once the round is open."""
        left_s = self.engine.deadline_left_s(self._now())
        return None if left_s is None else time.time() + left_s

    def status(self) -> dict[str, Any]:
        """Where the round stands right now."""
        return {
            "number": self.plan.number,
            "kind": self.plan.kind.value,
            "state": self.engine.state.value,
            "paused": self.engine.paused,
            "clients": {phase.value: n for phase, n in self.engine.counts().items()},
            "members": {client: phase.value for client, phase in self.engine.phases.items()},
            "available": self.engine.available,
            "accepted": self.engine.accepted,
            "goal": self.engine.config.goal,
            "quorum": self.engine.config.quorum,
            "deadline_left_s": self.engine.deadline_left_s(self._now()),
        }

    # ---- messages ----------------------------------------------------------------------------

    def _row(self) -> dict[str, Any]:
        now = time.time()
        return {
            "run": self.plan.run,
            "number": self.plan.number,
            "kind": self.plan.kind.value,
            "opened_at": now,
            "deadline_at": self.deadline_at() or now,
            "model_in": self.plan.model,
        }

    def _task_key(self) -> fleet_pb2.TaskKey:
        return fleet_pb2.TaskKey(run=self.plan.run, round=self.plan.number)

    def task(self, client: str) -> fleet_pb2.Task:
        """What this client is asked to do."""
        plan, spec = self.plan, self.plan.spec
        train = plan.kind is RoundKind.TRAIN
        settings = spec.local_training().at(plan.trained + 1, spec.round_config().goal)
        rule = spec.build_strategy().rule
        return fleet_pb2.Task(
            key=self._task_key(),
            kind=fleet_pb2.TASK_KIND_TRAIN if train else fleet_pb2.TASK_KIND_EVALUATE,
            model=fleet_pb2.ModelRef(digest=plan.model, size_bytes=plan.manifest.size_bytes),
            train=fleet_pb2.TrainSettings(
                epochs=settings.epochs,
                steps=settings.steps,
                batch_size=settings.batch_size,
                learning_rate=settings.learning_rate,
            ),
            rule=fleet_pb2.ClientRule(name=rule.name, settings=rule.settings()),
            evaluate=spec.evaluate,
            weighting=plan.limits.weighting,
            limits=fleet_pb2.UpdateLimits(
                max_abs=spec.max_abs, max_weight=spec.max_weight, max_bytes=plan.limits.max_bytes
            ),
            config={name: _scalar(value) for name, value in spec.config.items()},
            deadline_s=self.engine.deadline_left_s(self._now()) or 0.0,
            seed=task_seed(spec.seed, plan.number, client),
        )


def task_seed(seed: int, number: int, client: str) -> int:
    """The seed of a client's randomness in a round; depends on nothing else."""
    text = f"{seed}\0{number}\0{client}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1


def _scalar(value: bool | float | str) -> fleet_pb2.Scalar:
    match value:
        case bool():
            return fleet_pb2.Scalar(bool_value=value)
        case int():
            return fleet_pb2.Scalar(int_value=value)
        case float():
            return fleet_pb2.Scalar(double_value=value)
        case str():
            return fleet_pb2.Scalar(string_value=value)


def _mean(updates: list[dict[str, Any]], what: str) -> dict[str, Any]:
    """Weighted means of what the clients measured, and over how many examples."""
    parts = [(u[what]["num_examples"], u[what]["values"]) for u in updates if u[what]]
    parts = [(n, values) for n, values in parts if n > 0 and values]
    if not parts:
        return {}
    return {"num_examples": sum(n for n, _ in parts), "values": metrics.weighted_mean(parts)}
