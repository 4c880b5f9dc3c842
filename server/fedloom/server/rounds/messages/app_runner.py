"""Runs the `ServerApp` of a run in a process of its own, while the run is active."""

import asyncio
import logging
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from fedloom.protocol import flower_project
from fedloom.protocol.errors import FedloomError, UsageError
from fedloom.server import engine
from fedloom.server.engine import Run, RunEvent
from fedloom.server.flower.app_process import AppOrder, AppProcess
from fedloom.server.metrics.log_buffer import about
from fedloom.server.planning.spec import RunSpec
from fedloom.server.rounds.context import RoundsContext
from fedloom.server.rounds.messages.board import FILES, MessageBoard

log = logging.getLogger(__name__)


class AppRun(Protocol):
    """The run of an app; `RunDriver` is one."""

    id: str
    engine: Run

    @property
    def spec(self) -> RunSpec:
        """As submitted."""

    def feed(self, event: RunEvent) -> None:
        """Pass an event to the run's engine."""


def check(spec: RunSpec, context: RoundsContext) -> None:
    """Check that the server knows the app of a run.

    Raises:
        UsageError: it does not, the app has no `ServerApp`, Flower is not installed, or the server
            has an object store.
    """
    settings = spec.message_settings()
    if settings is None:
        return
    if context.remote is not None:
        raise UsageError(
            f"Expected a run without a ServerApp on a server with an object store, got "
            f"{settings.server_app!r}: its replies would be on this machine's disk alone."
        )
    folder = context.apps.get(settings.server_app)
    if folder is None:
        known = ", ".join(sorted(context.apps)) or "none"
        raise UsageError(
            f"Expected flower.server_app as a name in [flower_apps] of server.toml ({known}), got "
            f"{settings.server_app!r}."
        )
    flower_project.server_app_of(folder)
    AppProcess.check()


class AppRunner:
    """The app of one run.

    Args:
        run: its driver.
        context: the server's.

    Attributes:
        board: the app's messages.
    """

    def __init__(self, run: AppRun, context: RoundsContext) -> None:
        self._run, self._context = run, context
        folder = context.app_runs / run.id
        self.board = MessageBoard(run.id, context, folder, self._wanted, run.spec.study)
        self._process: AppProcess | None = None
        self._watching: asyncio.Task[None] | None = None
        self._stopped = False

    def _wanted(self) -> None:
        if self.board.pending:
            self._run.feed(engine.Wanted())

    def follow(self) -> None:
        """Start the app with an active run, end it with the run, and open a round if messages wait.

        A paused run keeps its app, which waits for its replies.
        """
        state, machine = self._run.engine.state, self._run.engine
        if state not in (engine.RunState.RUNNING, engine.RunState.PAUSED):
            if self._process is not None:
                self._process.kill()
            return
        if state is engine.RunState.RUNNING and not self._stopped:
            if self._watching is None:
                self._watching = asyncio.ensure_future(self._watch())
            if machine.progress.open_kind is None and self.board.pending:
                asyncio.get_running_loop().call_soon(self._wanted)

    async def _watch(self) -> None:
        """Run the app to its end."""
        extra = about(run=self._run.id)
        settings = self._run.spec.message_settings()
        assert settings is not None
        try:
            check(self._run.spec, self._context)
            self.board.restart()
            order = AppOrder(
                run=self._run.id,
                folder=self._context.apps[settings.server_app],
                config=dict(self._run.spec.config),
                seed=self._run.spec.seed,
                files=self.board.files,
                drafts=self._context.models.temporary().parent,
                max_bytes=settings.max_bytes,
            )
            self._process = AppProcess(
                order, self._answer, lambda line: log.info("ServerApp: %s", line, extra=extra)
            )
            log.info("run %s: its ServerApp starts", self._run.id, extra=extra)
            failure = await self._process.run()
        except Exception as error:
            log.exception("run %s: its ServerApp cannot run", self._run.id, extra=extra)
            known = isinstance(error, FedloomError)
            self._run.feed(engine.Break(str(error) if known else f"its ServerApp: {error!r}"))
            return
        finally:
            self._process = self._watching = None
        if not self._stopped:
            self._run.feed(engine.Break(failure) if failure else engine.Done())

    async def _answer(self, do: str, values: Mapping[str, Any]) -> Any:
        """Answer a request of the app.

        Raises:
            FedloomError: it cannot be done; the app gets the message.
        """
        match do:
            case "clients":
                return await self.board.clients()
            case "push":
                return await self.board.push(values["messages"])
            case "collect":
                return await self.board.collect(values["ids"], values["timeout_s"])
        raise UsageError(f"Expected a request that the server knows, got {do[:80]!r}.")

    async def stop(self) -> None:
        """End the app; the server's next start begins it anew."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()
        if self._watching is not None:
            await asyncio.wait([self._watching])

    async def clean(self) -> None:
        """Delete what the run needed; what the app wrote is kept."""
        await self.stop()
        await _forget(self._context, self._run.id)


async def sweep(context: RoundsContext, active: Collection[str]) -> None:
    """Delete what runs needed that ended when the server was killed."""
    if context.app_runs.is_dir():
        for folder in sorted(context.app_runs.iterdir()):
            if folder.name not in active and any(p.name != FILES for p in folder.iterdir()):
                await _forget(context, folder.name)


async def _forget(context: RoundsContext, run: str) -> None:
    for row in await context.in_ledger(context.ledger.list_messages, run):
        context.models.path(row.digest).unlink(missing_ok=True)
    await context.in_ledger(context.ledger.forget_messages, run)
    await context.in_disk(_clean, context.app_runs / run)


def _clean(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and path.name != FILES:
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()
