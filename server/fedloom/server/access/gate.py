"""Authenticates operators: a request's credentials to a principal, a password to a session.

Invariants: a request over TCP without a valid credential has no principal; errors do not say what
is wrong with a credential; checking takes as long for an unknown name as for a known one.
"""

import time
from dataclasses import dataclass, field

from starlette.requests import Request

from fedloom.protocol.errors import UnavailableError, printable
from fedloom.server.access import passwords, secrets
from fedloom.server.access.context import AccessContext
from fedloom.server.access.errors import ForbiddenError, TooManyTriesError, UnauthenticatedError
from fedloom.server.access.oidc import Oidc
from fedloom.server.access.principal import LOCAL_USER, Principal
from fedloom.server.access.site import Site
from fedloom.server.access.throttle import Throttle, network_of
from fedloom.server.ledger.access.accounts import IDLE_S, Accounts, Row, Scope

MAX_CHECKS = 16
"""Passwords in check or waiting for it: each takes a third of a second and 64 MiB."""

KNOWN_S = 10.0
"""Seconds a session is cached while no account changes: pages send a request every two seconds,
and a query of the session costs as much as the rest of the answer."""

MAX_KNOWN = 1000

FAILED = "Wrong name or password."

_NO_CREDENTIAL = "Log in, or send an API token as `Authorization: Bearer TOKEN`."
_BAD_CREDENTIAL = (
    "The API token is unknown, revoked or expired. Ask an administrator for a new one "
    "(`fedloom api-token create`)."
)


@dataclass(slots=True)
class Gate:
    """Authenticates operators.

    Attributes:
        site: the console's site.
        oidc: logins through a provider; None for none.
    """

    access: AccessContext
    site: Site
    oidc: Oidc | None = None
    _names: Throttle = field(default_factory=lambda: Throttle(free=5, longest_s=60.0))
    _networks: Throttle = field(default_factory=lambda: Throttle(free=10, longest_s=900.0))
    _checks: int = 0
    _known: dict[str, tuple[int, float, float, Row]] = field(default_factory=dict)

    @property
    def accounts(self) -> Accounts:
        """The accounts in the ledger."""
        return self.access.accounts

    async def principal(self, request: Request) -> Principal:
        """The principal of a request.

        Raises:
            UnauthenticatedError: it has no credential, or one that is not or no longer valid.
        """
        if (name := request.scope.get(LOCAL_USER)) is not None:
            return Principal(name=name, scope=Scope.ADMIN, how="socket")
        if (given := request.headers.get("authorization")) is not None:
            return await self._by_token(given)
        if (secret := request.cookies.get(self.site.cookie)) is not None:
            return await self._by_session(secret)
        raise UnauthenticatedError(_NO_CREDENTIAL)

    async def _by_token(self, given: str) -> Principal:
        scheme, _, text = given.partition(" ")
        token = secrets.read_api_token(text) if scheme.lower() == "bearer" else None
        if token is None:
            raise UnauthenticatedError(_BAD_CREDENTIAL)
        now = time.time()
        row = await self.access.in_access(self.accounts.api_token, token.id, now)
        if row is None or not secrets.same(token.secret, row["secret_hash"]):
            raise UnauthenticatedError(_BAD_CREDENTIAL)
        await self.access.in_access(self.accounts.touch_api_token, row, now)
        return Principal(
            name=row["name"], scope=Scope(row["scope"]), how="token", studies=_studies(row)
        )

    async def _by_session(self, secret: str) -> Principal:
        row = await self._session(secrets.kept(secret)) if secrets.is_secret(secret) else None
        if row is None:
            raise UnauthenticatedError("Your session has ended. Log in again.")
        return Principal(
            name=row["name"],
            scope=Scope(row["scope"]),
            how="oidc" if row["how"] == "oidc" else "session",
            csrf=secrets.csrf_token(secret),
            studies=_studies(row),
        )

    async def _session(self, hashed: str) -> Row | None:
        """A valid session; queried again after `KNOWN_S` and after any change of the accounts."""
        accounts, now = self.accounts, time.monotonic()
        known = self._known.get(hashed)
        if known is not None:
            revision, asked_at, until, row = known
            fresh = revision == accounts.revision and now - asked_at < KNOWN_S
            if fresh and time.time() < until:
                return row
        revision = accounts.revision  # before the query: a change meanwhile makes its result stale
        found = await self.access.in_access(accounts.session, hashed, time.time())
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known.pop(hashed, None)
        if found is not None:
            until = min(found["expires_at"], found["seen_at"] + IDLE_S)
            self._known[hashed] = (revision, now, until, found)
        return found

    # ---- logging in --------------------------------------------------------------------------

    async def log_in(self, name: str, password: str, address: str) -> str:
        """Open a session by password for a browser at this address.

        Returns:
            The session's secret, for the cookie.

        Raises:
            TooManyTriesError: too many attempts failed.
            UnauthenticatedError: the name or the password is wrong.
            UnavailableError: too many logins are being checked.
        """
        name = printable(name, 64)
        self._count(name, address)
        row = await self.access.in_access(self.accounts.user, name)
        if not await self._check(password, row["password"] if row else None):
            self.audit_failure(name, "password", address)
            raise UnauthenticatedError(FAILED)
        assert row is not None
        self._names.forgive(name)
        self._networks.forgive(network_of(address), 1)
        if passwords.is_outdated(row["password"]):
            new = await self.access.in_passwords(passwords.hashed, password)
            await self.access.in_access(
                lambda: self.accounts.set_password(name, new, keep_sessions=True)
            )
        return await self.open_session(name, "password", Scope(row["scope"]), address)

    async def log_in_by_link(self, secret: str, address: str) -> str:
        """Open a session by a one-time link and return its secret.

        Raises:
            UnauthenticatedError: the link was used, has expired, or is not valid.
        """
        row = None
        if secrets.is_secret(secret):
            hashed = secrets.kept(secret)
            row = await self.access.in_access(self.accounts.use_link, hashed, time.time())
        if row is None:
            raise UnauthenticatedError(
                "This login link was used or has expired. `fedloom console` prints a new one."
            )
        return await self.open_session(row["name"], "link", Scope(row["scope"]), address)

    async def open_session(self, name: str, how: str, scope: Scope, address: str) -> str:
        """Open a session for an authenticated user and return its secret."""
        detail = {"scope": scope.value, "address": address}
        await self.access.audit_log.record(name, how, "login", name, detail)
        secret = secrets.make_secret()
        await self.access.in_access(
            self.accounts.open_session, secrets.kept(secret), name, how, scope, time.time()
        )
        return secret

    async def log_out(self, request: Request) -> None:
        """End the session of a request, if it has one."""
        if secret := request.cookies.get(self.site.cookie):
            await self.access.in_access(self.accounts.end_session, secrets.kept(secret))

    async def confirm(self, name: str, password: str) -> None:
        """Check the password of a user who has a session.

        Raises:
            TooManyTriesError: too many attempts failed.
            ForbiddenError: the password is wrong.
            UnavailableError: too many logins are being checked.
        """
        self._count(name, "")
        row = await self.access.in_access(self.accounts.user, name)
        if not await self._check(password, row["password"] if row else None):
            raise ForbiddenError("The current password is wrong.")
        self._names.forgive(name)
        self._networks.forgive("")

    def address(self, request: Request) -> str:
        """Address of a request; behind a reverse proxy on this machine, the one it forwards."""
        address = request.client.host if request.client else ""
        forwarded = request.headers.getlist("x-forwarded-for")
        if self.site.behind_proxy and forwarded and network_of(address) in ("127.0.0.1", "::/64"):
            # The nearest proxy added the last one; earlier ones can be forged.
            address = _without_port(forwarded[-1].rpartition(",")[2].strip())
        return printable(address, 64)

    def _count(self, name: str, address: str) -> None:
        now, network = time.monotonic(), network_of(address)
        wait = max(self._names.wait_s(name, now), self._networks.wait_s(network, now))
        if wait > 0:
            raise TooManyTriesError(
                f"Too many failed logins. Try again in {wait:.0f} seconds.", wait
            )
        self._names.count(name, now)
        self._networks.count(network, now)

    async def _check(self, password: str, stored: str | None) -> bool:
        if self._checks >= MAX_CHECKS:
            raise UnavailableError("Too many logins at once. Try again in a few seconds.")
        self._checks += 1
        try:
            return await self.access.in_passwords(passwords.matches, password, stored)
        finally:
            self._checks -= 1

    def audit_failure(self, name: str, how: str, address: str) -> None:
        """Note a failed login, limited per hour."""
        detail = {"address": address}
        self.access.audit_log.note(name, how, "login.fail", name, detail)


def _studies(row: Row) -> frozenset[str] | None:
    return None if row["studies"] is None else frozenset(row["studies"])


def _without_port(address: str) -> str:
    """A forwarded address without the port, which some proxies add."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address
