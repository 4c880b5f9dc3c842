"""Routes of operators' access: users, API tokens and login links."""

import time
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path

from fedloom.protocol.errors import UsageError
from fedloom.server.access import passwords, secrets
from fedloom.server.access.errors import ForbiddenError
from fedloom.server.access.principal import Principal
from fedloom.server.access.scopes import Admin, Viewer
from fedloom.server.http.dependencies import FAULTS, Context
from fedloom.server.ledger.access.accounts import LINK_LIFE_S, Scope, check_name
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.errors import ConflictError, NotFoundError
from fedloom.server.routes.access_views import (
    ApiTokenList,
    ApiTokenView,
    IssuedApiToken,
    LoginLink,
    Me,
    NewApiToken,
    NewLink,
    NewPassword,
    NewScope,
    NewUser,
    OwnPassword,
    UserList,
    UserView,
)
from fedloom.server.studies import check_study

router = APIRouter(tags=["access"], responses=FAULTS)

Name = Annotated[str, Path(max_length=200)]


@router.get("/me")
async def me(principal: Viewer) -> Me:
    """The caller's name and scope."""
    limited = None if principal.studies is None else sorted(principal.studies)
    return Me(name=principal.name, scope=principal.scope, how=principal.how, studies=limited)


@router.post("/me/password")
async def change_own_password(context: Context, principal: Viewer, wish: OwnPassword) -> Me:
    """Change the caller's password; all their sessions end, including this one."""
    accounts, access = context.access.accounts, context.access
    row = await access.in_access(accounts.user, principal.name)
    if principal.how != "session" or row is None:
        raise ConflictError("Only a user who logged in by password has one to change.")
    await context.gate.confirm(principal.name, wish.old)
    passwords.check_new(wish.new)
    await context.audit(principal, "user.password", principal.name)
    hashed = await access.in_passwords(passwords.hashed, wish.new)
    await access.in_access(accounts.set_password, principal.name, hashed)
    return Me(name=principal.name, scope=principal.scope, how=principal.how)


# ---- users -----------------------------------------------------------------------------------


@router.get("/users")
async def list_users(context: Context, _: Admin) -> UserList:
    """All users by name."""
    rows = await context.access.in_access(context.access.accounts.users)
    return UserList(users=[UserView(**row) for row in rows])


@router.post("/users", status_code=201)
async def add_user(context: Context, principal: Admin, wish: NewUser) -> UserView:
    """Add a user with a password."""
    name = check_name(wish.name)
    passwords.check_new(wish.password)
    access, accounts = context.access, context.access.accounts
    if await access.in_access(accounts.user, name) is not None:
        raise _taken(name)
    limited = checked_studies(wish.studies, wish.scope)
    detail: dict[str, object] = {"scope": wish.scope} | (
        {} if limited is None else {"studies": limited}
    )
    await context.audit(principal, "user.add", name, detail)
    hashed = await access.in_passwords(passwords.hashed, wish.password)
    make = partial(accounts.add_user, name, wish.scope, hashed, time.time(), limited)
    if not await access.in_access(make):
        raise _taken(name)
    return await _user(context, name)


@router.post("/users/{name}/password")
async def set_password(
    context: Context, principal: Admin, name: Name, wish: NewPassword
) -> UserView:
    """Set a user's password; all their sessions end."""
    passwords.check_new(wish.password)
    await _user(context, name)
    await context.audit(principal, "user.password", name)
    hashed = await context.access.in_passwords(passwords.hashed, wish.password)
    await context.access.in_access(context.access.accounts.set_password, name, hashed)
    return await _user(context, name)


@router.post("/users/{name}/scope")
async def set_scope(context: Context, principal: Admin, name: Name, wish: NewScope) -> UserView:
    """Change a user's scope, from the next request on.

    API tokens that the user created with a higher scope end.
    """
    user = await _user(context, name)
    checked_studies(user.studies, wish.scope)
    await context.audit(principal, "user.scope", name, {"scope": wish.scope})
    accounts, keep = context.access.accounts, _is_own(principal, name)
    await context.access.in_access(
        lambda: accounts.set_scope(name, wish.scope, time.time(), keep_an_admin=keep)
    )
    return await _user(context, name)


@router.post("/users/{name}/logout")
async def log_user_out(context: Context, principal: Admin, name: Name) -> UserView:
    """End all sessions of a name: of a user, a provider or a login link."""
    session = await context.access.in_access(context.access.accounts.session_of, name)
    if session is None:
        await _user(context, name)
    await context.audit(principal, "user.logout", name)
    await context.access.in_access(context.access.accounts.end_sessions, name)
    row = await context.access.in_access(context.access.accounts.user, name)
    return UserView.model_validate(row or session)


@router.post("/users/{name}/remove")
async def remove_user(context: Context, principal: Admin, name: Name) -> UserView:
    """Remove a user; their sessions and the API tokens that they created end at once."""
    user = await _user(context, name)
    await context.audit(principal, "user.remove", name)
    accounts, keep = context.access.accounts, _is_own(principal, name)
    await context.access.in_access(
        lambda: accounts.remove_user(name, time.time(), keep_an_admin=keep)
    )
    return user


def checked_studies(studies: list[str] | None, scope: Scope | str) -> list[str] | None:
    """The studies of a new user or API token.

    Raises:
        UsageError: one is no name, or the scope is not that of a viewer or an operator.
    """
    if studies is None:
        return None
    if not studies or "" in studies:
        raise UsageError("Expected the names of studies, got none.")
    for study in studies:
        check_study(study)
    if scope not in (Scope.VIEWER, Scope.OPERATOR):
        raise UsageError(
            f"Expected the scope viewer or operator with studies, got {scope}: it is of the whole "
            "server."
        )
    return sorted(set(studies))


def _is_own(principal: Principal, name: str) -> bool:
    """Whether it is the caller's own account; otherwise the caller remains an administrator."""
    return principal.how == "session" and principal.name == name


async def _user(context: ConsoleContext, name: str) -> UserView:
    row = await context.access.in_access(context.access.accounts.user, name)
    if row is None:
        raise NotFoundError(f"There is no user {name[:80]!r}: see `fedloom user list`.")
    return UserView(**row)


def _taken(name: str) -> ConflictError:
    return ConflictError(
        f"There is a user {name!r} already: `fedloom user passwd {name}` changes their password."
    )


# ---- API tokens and login links --------------------------------------------------------------


@router.get("/api-tokens")
async def list_api_tokens(context: Context, _: Admin) -> ApiTokenList:
    """All API tokens, newest first, without their secrets."""
    rows = await context.access.in_access(context.access.accounts.api_tokens)
    now = time.time()
    return ApiTokenList(api_tokens=[ApiTokenView.of(row, now) for row in rows])


@router.post("/api-tokens", status_code=201)
async def create_api_token(context: Context, principal: Admin, wish: NewApiToken) -> IssuedApiToken:
    """Create an API token. Its text is only in this answer."""
    name, created_at = check_name(wish.name), time.time()
    expires_at = None if wish.ttl_s is None else created_at + wish.ttl_s
    limited = checked_studies(wish.studies, wish.scope)
    detail: dict[str, object] = {"name": name, "scope": wish.scope, "ttl_s": wish.ttl_s}
    detail |= {} if limited is None else {"studies": limited}
    while True:
        token = secrets.make_api_token()
        await context.audit(principal, "api-token.create", token.id, detail)
        view = IssuedApiToken(
            id=token.id,
            name=name,
            scope=wish.scope,
            studies=limited,
            made_by=principal.name,
            created_at=created_at,
            expires_at=expires_at,
            token=token.text(),
        )
        row = view.model_dump(mode="json", exclude={"token"})
        row["secret_hash"] = secrets.kept(token.secret)
        if await context.access.in_access(context.access.accounts.add_api_token, row):
            return view  # else the short id is taken


@router.post("/api-tokens/{token_id}/revoke")
async def revoke_api_token(context: Context, principal: Admin, token_id: Name) -> ApiTokenView:
    """Revoke an API token at once; repeating this changes nothing."""
    accounts, now = context.access.accounts, time.time()
    rows = await context.access.in_access(accounts.api_tokens)
    if all(row["id"] != token_id for row in rows):
        raise NotFoundError(
            f"There is no API token with the id {token_id[:80]!r}: see `fedloom api-token list`."
        )
    await context.audit(principal, "api-token.revoke", token_id)
    row = await context.access.in_access(accounts.revoke_api_token, token_id, now)
    assert row is not None
    return ApiTokenView.of(row, now)


@router.post("/login-links", status_code=201)
async def create_login_link(context: Context, principal: Admin, wish: NewLink) -> LoginLink:
    """Create a link that logs the local operator in once. Only over the Unix socket."""
    if principal.how != "socket":
        raise ForbiddenError(
            "Login links are created only on the server's machine, over its Unix socket."
        )
    if not context.console_url:
        raise ConflictError("This server has no console: set `console` in server.toml.")
    await context.audit(principal, "login-link.create", principal.name, {"scope": wish.scope})
    secret, now = secrets.make_secret(), time.time()
    await context.access.in_access(
        context.access.accounts.add_link, secrets.kept(secret), principal.name, wish.scope, now
    )
    return LoginLink(
        url=f"{context.console_url}/login/link?code={secret}",
        scope=Scope(wish.scope),
        expires_at=now + LINK_LIFE_S,
    )
