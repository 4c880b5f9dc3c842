"""The clients that fail again and again, and those that get no offers for it, while a server runs.

`fedloom.server.client_failures` decides. The ledger holds each client's recent failures, so a
restart changes nothing.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from fedloom.server.client_failures import ClientRules, Failures

log = logging.getLogger(__name__)


class CoolOffs:
    """The recent failures of each client, and who cools off.

    Args:
        rules: of the server.
        announce: called with a client that may get offers again.

    Attributes:
        revision: rises with every change of who cools off.
    """

    def __init__(self, rules: ClientRules, announce: Callable[[str], None]) -> None:
        self.rules = rules
        self.revision = 0
        self._announce = announce
        self._failures: dict[str, Failures] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def load(self, found: Mapping[str, Failures]) -> None:
        """Continue with the failures that the ledger holds, by client."""
        self._failures = dict(found)
        self.revision += 1
        for client in found:
            self._announce_later(client)

    def failed(
        self, client: str, extra: Mapping[str, Any], *, evaluating: bool = False
    ) -> Failures:
        """A client's task has failed, or its update was refused; returns all recent ones.

        `extra` is of the line that is logged if the client now cools off.
        """
        found = self._failures.get(client, Failures()).plus_one(time.time(), evaluating=evaluating)
        self._failures[client] = found
        if left_s := self.left_s(client):
            self.revision += 1
            log.warning(
                "%s gets no offers for %.3g s: %d recent failed or refused tasks",
                client, left_s, found.count, extra=extra,
            )  # fmt: skip
            self._announce_later(client)
        return found

    def succeeded(self, client: str, *, evaluating: bool) -> None:
        """A client's update counts."""
        if client in self._failures:
            self._set(client, self._failures[client].after_success(evaluating=evaluating))

    def release(self, client: str) -> None:
        """An operator has released a client."""
        self._set(client, Failures())

    def _set(self, client: str, found: Failures) -> None:
        """Change the failures of a client; announce it if that ends its cooling-off."""
        self._failures[client] = found
        if client in self._timers and not self.left_s(client):
            self._timers.pop(client).cancel()
            self.revision += 1
            self._announce(client)
        if not found.count:
            del self._failures[client]

    def left_s(self, client: str) -> float:
        """Seconds in which a client gets no offers; 0 for none."""
        found = self._failures.get(client)
        return 0.0 if found is None else max(0.0, found.cools_until(self.rules) - time.time())

    def _announce_later(self, client: str) -> None:
        if client in self._timers:
            self._timers.pop(client).cancel()
        if left_s := self.left_s(client):
            loop = asyncio.get_running_loop()
            self._timers[client] = loop.call_later(left_s, self._over, client)

    def _over(self, client: str) -> None:
        del self._timers[client]
        self.revision += 1
        if self.left_s(client):  # the clock was set back
            self._announce_later(client)
        else:
            self._announce(client)
