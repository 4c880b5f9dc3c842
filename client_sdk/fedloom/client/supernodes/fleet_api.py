"""The calls that a `flower-supernode` of flwr 1.41 makes: protobuf in HTTP, under `/v1/fleet/`.

Source: flwr 1.41, `superlink/routers/fleet/router.py` and `superlink/servicer/fleet/`. Statuses
matter to a SuperNode: 401 ends it, 403 makes it drop the message it works on, 412 when it activates
ends it with the reason, and 502 to 504 are tried again.

Invariants: the body of a call is read only after its signature was verified, up to its limit; an
error concerns the SuperNode that caused it and no other.
"""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeVar

from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, run_pb2
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.error.catalog import API_ERROR_MAP
from google.protobuf.message import DecodeError, Message
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedloom.client.supernodes import keys
from fedloom.client.supernodes.apps import AppBundle
from fedloom.client.supernodes.mailbox import MalformedReplyError, StaleError
from fedloom.client.supernodes.node import Node

log = logging.getLogger(__name__)

PREFIX: Final = "/v1/fleet"
MEDIA_TYPE: Final = "application/x-protobuf"

MAX_CALL_BYTES: Final = 64 << 10
"""Longest call but for replies."""
MAX_REPLY_BYTES: Final = {
    fleet_pb2.PushMessagesRequest: 8 << 20,  # the tree of its objects has 70 bytes for each
    message_pb2.PushObjectRequest: 16 << 20,  # flwr cuts arrays into objects of 5 MiB
}
"""Longest calls with parts of a reply."""
BODIES: Final = 32
"""Parts of replies in memory at once."""
BODIES_OF_NODE: Final = 4
"""Parts of one SuperNode's replies in memory at once."""
STEP_BYTES: Final = 32 << 10
STEP_S: Final = 30.0
"""Time in which `STEP_BYTES` more of a body must arrive, or its end: 9 kbit/s."""
CALLS: Final = 8
"""Calls of one SuperNode at once: it makes four."""
HOLD_S: Final = 10.0
"""Time that a question for messages is held open without one; a SuperNode waits for 30 s."""
WARN_EVERY_S: Final = 10.0

_CLOSING: Final = {
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
}

T = TypeVar("T", bound=Message)


@dataclass(frozen=True, slots=True)
class CallError(Exception):
    """A call that is refused.

    Attributes:
        status: of the answer.
        detail: in words.
        code: of flwr; 0 for none.
    """

    status: HTTPStatus
    detail: str
    code: int = 0

    @classmethod
    def of(cls, code: ApiErrorCode, detail: str) -> "CallError":
        """An error that flwr has a code for."""
        return cls(HTTPStatus(API_ERROR_MAP[code].http_status_code), detail, int(code))

    def response(self, *, closes: bool = False) -> Response:
        """The answer; it closes the connection if it must, or if the peer or its body may not stay.

        Args:
            closes: whether it must.
        """
        closes = closes or self.status in _CLOSING
        content = {"code": self.code, "detail": self.detail}
        return JSONResponse(content, self.status, {"connection": "close"} if closes else None)


async def _unknown(_: Request, error: Exception) -> Response:
    """The answer to a path or a method that is none, of a peer that may be anybody."""
    assert isinstance(error, HTTPException)
    return CallError(HTTPStatus(error.status_code), error.detail).response(closes=True)


def _stale() -> CallError:
    return CallError.of(
        ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED, "This message is no longer to be answered."
    )


class FleetApi:
    """Serves SuperNodes.

    Args:
        enrolled: the SuperNode with a public key; None if it is not enrolled.
        app: that they run.
    """

    def __init__(self, enrolled: Callable[[bytes], Node | None], app: AppBundle) -> None:
        self._enrolled, self._bundle = enrolled, app
        self._bodies = asyncio.Semaphore(BODIES)
        self._bodies_of: defaultdict[int, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(BODIES_OF_NODE)
        )
        self._calls: Counter[int] = Counter()
        self._warned_at = -WARN_EVERY_S
        f, m = fleet_pb2, message_pb2
        self.app = Starlette(
            routes=[
                self._route("register-node", f.RegisterNodeFleetRequest, self._register),
                self._route("activate-node", f.ActivateNodeRequest, self._activate),
                self._route("deactivate-node", f.DeactivateNodeRequest, self._deactivate),
                self._route("unregister-node", f.UnregisterNodeFleetRequest, self._register),
                self._route(
                    "send-node-heartbeat", heartbeat_pb2.SendNodeHeartbeatRequest, self._heartbeat
                ),
                self._route("pull-messages", f.PullMessagesRequest, self._pull),
                self._route("push-messages", f.PushMessagesRequest, self._push),
                self._route("get-run", run_pb2.GetRunRequest, self._run),
                self._route("get-fab", fab_pb2.GetFabRequest, self._fab),
                self._route("pull-object", m.PullObjectRequest, self._pull_object),
                self._route("push-object", m.PushObjectRequest, self._push_object),
                self._route(
                    "confirm-message-received", m.ConfirmMessageReceivedRequest, self._confirm
                ),
            ],
            exception_handlers={HTTPException: _unknown},
        )
        self.app.router.redirect_slashes = False

    # ---- around every call -------------------------------------------------------------------

    def _route(
        self, name: str, kind: type[T], serve: Callable[[Node, T], Awaitable[Message]]
    ) -> Route:
        async def endpoint(request: Request) -> Response:
            node = None
            try:
                node = self._authenticated(request, activates=name == "activate-node")
                with _counted(self._calls, node.id):
                    call = await self._parsed(node, request, kind)
                    self._check_node(node, call)
                    answer = await serve(node, call)
            except CallError as error:
                if not _is_routine(error):
                    self._warn(request, name, error)
                return error.response(closes=node is None)
            except ClientDisconnect:
                return Response(status_code=HTTPStatus.BAD_REQUEST)
            return Response(answer.SerializeToString(), media_type=MEDIA_TYPE)

        return Route(f"{PREFIX}/{name}", endpoint, methods=["POST"])

    def _authenticated(self, request: Request, *, activates: bool) -> Node:
        pem = keys.claimed(request.headers)
        node = self._enrolled(pem)
        if node is None:
            text = (
                f"The key {keys.fingerprint(pem)} is not enrolled: "
                "the operator enrols it by `fedloom bridge enroll`."
                if pem
                else "Expected a signed call: start flower-supernode with "
                "--auth-supernode-private-key."
            )
            if activates or request.url.path.endswith("/register-node"):
                raise CallError.of(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED, text)
            raise CallError(HTTPStatus.UNAUTHORIZED, text)
        if not keys.is_signed(request.headers, node.key):
            raise CallError(
                HTTPStatus.UNAUTHORIZED,
                "Expected a signature of the current time by the enrolled key: check the clock.",
            )
        if node.refusal and not activates:
            raise CallError(HTTPStatus.UNAUTHORIZED, f"The server refuses it: {node.refusal}")
        return node

    async def _parsed(self, node: Node, request: Request, kind: type[T]) -> T:
        most = MAX_REPLY_BYTES.get(kind)
        if most is None:
            body = await _body(request, MAX_CALL_BYTES)
        else:
            async with self._bodies_of[node.id], self._bodies:
                body = await _body(request, most)
        try:
            return kind.FromString(body)
        except DecodeError:
            raise CallError(
                HTTPStatus.BAD_REQUEST, f"Expected a {kind.DESCRIPTOR.name}, got other bytes."
            ) from None

    def _check_node(self, node: Node, call: Any) -> None:
        """Check that a call names the SuperNode whose key signed it."""
        if "public_key" in call.DESCRIPTOR.fields_by_name:
            named = call.public_key == node.key
        else:
            number = call.node.node_id if hasattr(call, "node") else call.node_id
            named = number == node.id
        if not named:
            raise CallError(
                HTTPStatus.UNAUTHORIZED, "Expected the node of the key that signed the call."
            )

    def _warn(self, request: Request, name: str, error: CallError) -> None:
        """Log a refused call; one line in some seconds at WARNING, the others at DEBUG."""
        quiet = time.monotonic() - self._warned_at < WARN_EVERY_S
        if not quiet:
            self._warned_at = time.monotonic()
        host = request.client.host if request.client else "unknown"
        level = logging.DEBUG if quiet else logging.WARNING
        log.log(level, "%s from %s refused: %d: %s", name, host, error.status, error.detail)

    # ---- presence ----------------------------------------------------------------------------

    async def _register(self, node: Node, _: Message) -> Message:
        raise CallError.of(
            ApiErrorCode.FLEET_SUPERNODE_REGISTRATION_DISABLED,
            f"The operator enrols SuperNodes, and enrolled {node.client}: use "
            "--auth-supernode-private-key.",
        )

    async def _activate(
        self, node: Node, call: fleet_pb2.ActivateNodeRequest
    ) -> fleet_pb2.ActivateNodeResponse:
        node.refusal = ""
        node.seen(call.heartbeat_interval)
        return fleet_pb2.ActivateNodeResponse(node_id=node.id)

    async def _deactivate(
        self, node: Node, _: fleet_pb2.DeactivateNodeRequest
    ) -> fleet_pb2.DeactivateNodeResponse:
        node.left()
        return fleet_pb2.DeactivateNodeResponse()

    async def _heartbeat(
        self, node: Node, call: heartbeat_pb2.SendNodeHeartbeatRequest
    ) -> heartbeat_pb2.SendNodeHeartbeatResponse:
        node.seen(call.heartbeat_interval)
        return heartbeat_pb2.SendNodeHeartbeatResponse(success=True)

    # ---- messages ----------------------------------------------------------------------------

    async def _pull(
        self, node: Node, _: fleet_pb2.PullMessagesRequest
    ) -> fleet_pb2.PullMessagesResponse:
        node.seen()
        try:
            async with asyncio.timeout(HOLD_S):
                while True:
                    node.posted.clear()
                    message = await asyncio.to_thread(node.mailboxes.pending)
                    if message is not None:
                        return message
                    await node.posted.wait()
        except TimeoutError:
            return fleet_pb2.PullMessagesResponse()

    async def _run(self, node: Node, call: run_pb2.GetRunRequest) -> run_pb2.GetRunResponse:
        try:
            found = await asyncio.to_thread(node.mailboxes.run, call.run_id)
        except StaleError:
            raise _stale() from None
        return run_pb2.GetRunResponse(run=found)

    async def _fab(self, _: Node, call: fab_pb2.GetFabRequest) -> fab_pb2.GetFabResponse:
        if call.hash_str != self._bundle.digest:
            raise CallError.of(
                ApiErrorCode.FLEET_GET_FAB_FAILED,
                f"Expected the digest {self._bundle.digest} of the app.",
            )
        return fab_pb2.GetFabResponse(fab=self._bundle.fab())

    async def _pull_object(
        self, node: Node, call: message_pb2.PullObjectRequest
    ) -> message_pb2.PullObjectResponse:
        content = await asyncio.to_thread(node.mailboxes.object, call.object_id)
        found = content is not None
        return message_pb2.PullObjectResponse(
            object_found=found, object_available=found, object_content=content or b""
        )

    async def _confirm(
        self, _: Node, __: message_pb2.ConfirmMessageReceivedRequest
    ) -> message_pb2.ConfirmMessageReceivedResponse:
        # Its objects stay until it is answered: a SuperNode that is killed gets them again.
        return message_pb2.ConfirmMessageReceivedResponse()

    async def _push(
        self, node: Node, call: fleet_pb2.PushMessagesRequest
    ) -> fleet_pb2.PushMessagesResponse:
        node.seen()
        if len(call.messages_list) != 1 or len(call.message_object_trees) != 1:
            raise CallError(HTTPStatus.BAD_REQUEST, "Expected one message with its tree.")
        message = call.messages_list[0]
        wanted, session = await self._replied(
            lambda: node.mailboxes.begin_reply(message, call.message_object_trees[0])
        )
        return fleet_pb2.PushMessagesResponse(
            results={message.metadata.message_id: 0}, objects_to_push=wanted, session_id=session
        )

    async def _push_object(
        self, node: Node, call: message_pb2.PushObjectRequest
    ) -> message_pb2.PushObjectResponse:
        node.seen()
        stored = await self._replied(
            lambda: node.mailboxes.put(call.session_id, call.object_id, call.object_content)
        )
        return message_pb2.PushObjectResponse(stored=stored)

    async def _replied(self, call: Callable[[], Any]) -> Any:
        try:
            return await asyncio.to_thread(call)
        except StaleError:
            raise _stale() from None
        except MalformedReplyError as error:
            raise CallError(HTTPStatus.BAD_REQUEST, f"The reply is refused: {error}") from None
        except OSError as error:
            raise CallError(
                HTTPStatus.SERVICE_UNAVAILABLE, f"The bridge cannot store it: {error.strerror}."
            ) from error


async def _body(request: Request, most: int) -> bytes:
    """The body of a call; a slow one may take its time, a stalled one may not."""
    body = bytearray()
    now = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(STEP_S) as limit:
            due = STEP_BYTES
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise CallError(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                        f"Expected at most {most} bytes, got more.",
                    )
                if len(body) >= due:
                    due = len(body) + STEP_BYTES
                    limit.reschedule(now() + STEP_S)
    except TimeoutError:
        raise CallError(
            HTTPStatus.REQUEST_TIMEOUT,
            f"Expected {STEP_BYTES} bytes more, or the end, within {STEP_S:.0f} s.",
        ) from None
    return bytes(body)


def _is_routine(error: CallError) -> bool:
    """Whether an error is no fault: a message was withdrawn."""
    return error.code == int(ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED)


class _counted:  # noqa: N801 - used as a function
    """Counts a SuperNode's calls while they last."""

    def __init__(self, calls: Counter[int], node: int) -> None:
        self._calls, self._node = calls, node

    def __enter__(self) -> None:
        if self._calls[self._node] >= CALLS:
            raise CallError(
                HTTPStatus.SERVICE_UNAVAILABLE, f"Expected at most {CALLS} calls at once."
            )
        self._calls[self._node] += 1

    def __exit__(self, *_: object) -> None:
        self._calls[self._node] -= 1
