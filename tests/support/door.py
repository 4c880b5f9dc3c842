"""The HTTP API over real storage on a real Unix socket, without a fleet."""

import asyncio
import http.client
import json
import socket
import threading
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import numpy as np

from fedloom.protocol.tensors.container import write_params
from fedloom.server import config
from fedloom.server.access import oidc_http, request_pace
from fedloom.server.access.site import make_site
from fedloom.server.config import ServerConfig
from fedloom.server.context import assemble
from fedloom.server.http import paced_listener, unix_socket
from fedloom.server.http import tcp_listener as console
from fedloom.server.ledger import Ledger
from fedloom.server.pki.authority import Authority
from fedloom.server.pki.noise_keys import NoiseKeys
from fedloom.server.rounds.manager import Runs
from fedloom.server.routes import application
from fedloom.server.storage.context import StorageContext
from fedloom.server.storage.model_store import ModelStore
from fedloom.server.storage.spool import Spool
from support.contexts import Contexts
from support.patience import PATIENCE_S

# Tests make more requests than people do, from one address, each over a connection of its own.
for name in ("USERS", "STRANGERS", "ALL_STRANGERS"):
    setattr(request_pace, name, (100_000, 10_000.0))
for name in ("ALL", "OF_NETWORK"):
    setattr(paced_listener, name, (100_000, 10_000.0))

SPEC = {"name": "digits", "cohort": {"goal": 2}, "train": {"epochs": 1, "learning_rate": 0.1}}


def write_model(path, size=4, value=0.0):
    """Write a small model and return its path."""
    with path.open("wb") as file:
        write_params(file, {"w": np.full(size, value, np.float32)}, {})
    return path


class _Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE_S)
        self._path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Door:
    """A server's API, served by a separate thread while the context is open.

    Attributes:
        site: where browsers reach it; None without `console`.
    """

    def __init__(self, directory, *, plaintext=False, console="", provider=None, **settings):
        self.directory = directory
        directory.mkdir(exist_ok=True)
        settings = ServerConfig(federation="demo", console=console, **settings)
        config.write(directory, settings)
        self.authority = (
            None if plaintext else Authority.create(directory / "pki", "demo", datetime.now(UTC))
        )
        storage = StorageContext(
            ledger=Ledger.in_directory(directory),
            models=ModelStore(directory / "models"),
            spool=Spool(directory / "spool"),
        )
        self.context = assemble(settings, storage, NoiseKeys(directory / "noise"))
        self.contexts = Contexts(self.context)
        self.runs = Runs(self.context.rounds)
        self.site = self.app = None
        self._provider = provider
        self._loop = None
        self._stopping = None
        self._up = threading.Event()
        self._error = None
        self._thread = threading.Thread(target=self._main)

    def __enter__(self):
        self._thread.start()
        assert self._up.wait(PATIENCE_S)
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _main(self):
        asyncio.run(self._serve())

    async def _serve(self):
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        config, authority = self.contexts.config, self.authority
        try:
            async with AsyncExitStack() as stack:
                listener = await stack.enter_async_context(
                    unix_socket.listening(self.directory / "control.sock")
                )
                door = stack.enter_context(console.listening(self.directory, config, authority))
                if door is not None:
                    self.port = door.port
                    self.site = make_site(config, door.port, tls=door.context is not None)
                oidc = self._provider and oidc_http.load(
                    self._provider, self.directory, self.site.url
                )
                app = application.create_app(
                    self.context, self.runs, authority,
                    enrolment="127.0.0.1:1", site=self.site, oidc=oidc,
                )  # fmt: skip
                serving = [asyncio.ensure_future(unix_socket.serve(app, listener))]
                if door is not None:
                    work = console.serve(app, door, self.directory, config, authority)
                    serving.append(asyncio.ensure_future(work))
                self.app = app
                self.contexts = Contexts(self.context, app.state.context)
                self._up.set()
                await self._stopping.wait()
                for task in serving:
                    task.cancel()
                await asyncio.wait(serving)
        except Exception as error:
            self._error = error
            raise
        finally:
            await self.runs.stop()
            self.context.close()
            self._up.set()

    def call(self, function, *args):
        """Call a function in the server's event loop and return what it returns."""

        async def calling():
            return function(*args)

        return asyncio.run_coroutine_threadsafe(calling(), self._loop).result(PATIENCE_S)

    def call_async(self, function, *args):
        """Await a coroutine function in the server's event loop and return what it returns."""
        return asyncio.run_coroutine_threadsafe(function(*args), self._loop).result(PATIENCE_S)

    def connect(self):
        """A raw connection to the socket."""
        connection = _Connection(self.directory / "control.sock")
        connection.connect()
        return connection

    def ask(self, method, path, document=None, *, body=None, headers=None):
        """Send a request; return the status and the JSON document that answers it."""
        connection = self.connect()
        try:
            headers = dict(headers or {})
            if document is not None:
                body, headers["Content-Type"] = json.dumps(document).encode(), "application/json"
            connection.request(method, f"/v1{path}", body, headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def put_model(self, path):
        """Upload a model file and return its digest."""
        status, stored = self.ask("PUT", "/models", body=path.read_bytes())
        assert status == 201, stored
        return stored["digest"]

    def submit(self, tmp_path, **settings):
        """Start a run that waits for clients, and return its id."""
        digest = self.put_model(write_model(tmp_path / "submitted.safetensors"))
        status, run = self.ask("POST", "/runs", {"spec": SPEC | settings, "model": digest})
        assert status == 201, run
        return run["id"]

    def commit(self, run, number, model, **result):
        """Commit a round in the ledger, without the run's driver."""
        ledger = self.contexts.ledger
        row = {
            "run": run, "number": number, "kind": "train", "opened_at": 0.0, "deadline_at": 1.0,
            "model_in": ledger.run(run).model,
        }  # fmt: skip
        ledger.open_round(row, [])
        ledger.close_round(run, number)
        empty = {"strategy_state": None, "training": {}, "evaluation": {}, "counts": True}
        ledger.commit_round(run, number, {**empty, "model_out": model, **result}, 10)

    def temporaries(self):
        """Files in the model store that are not models."""
        return [p for p in (self.directory / "models").iterdir() if p.suffix != ".safetensors"]
