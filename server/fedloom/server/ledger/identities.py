"""Clients, their certificates, and the one-time tokens for enrolment."""

import time
from collections.abc import Iterable
from dataclasses import fields

import sqlalchemy as sa

from fedloom.protocol.errors import Code, Refusal
from fedloom.server.ledger.rows import ClientRow, HashedTokenRow, RenewalRow, TokenRow
from fedloom.server.ledger.store import Store, is_there
from fedloom.server.ledger.tables import certificates, clients, tokens

GONE = ("revoked", "left")
"""Statuses of clients that need a new token to return."""

# Made once, since every call and every second asks them.
_REVOKED_AT = sa.select(certificates.c.revoked_at).filter_by(
    serial=sa.bindparam("serial"), client=sa.bindparam("client")
)
_GONE = sa.select(clients.c.name).where(clients.c.status.in_(GONE))


class Identities(Store):
    """Methods about clients, certificates and tokens."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._checked: dict[str, str] = {}  # client → its certificate that was checked last
        self._shut_outs = 0

    def add_token(
        self,
        token_id: str,
        secret_hash: str,
        client: str,
        expires_at: float,
        study: str = "",
        *,
        devices: int = 0,
    ) -> None:
        """Store a one-time token by the hash of its secret, for a client of a study.

        `devices` is most of a site's devices in one sum; 0 for a device.
        """
        row = {
            "id": token_id, "secret_hash": secret_hash, "client": client, "study": study,
            "devices": devices,
        }  # fmt: skip
        times = {"created_at": time.time(), "expires_at": expires_at}
        self._change(tokens.insert().values(**row, **times))

    def token(self, token_id: str) -> HashedTokenRow | None:
        """A token."""
        return self._row(sa.select(tokens).where(tokens.c.id == token_id), HashedTokenRow)

    def cancel_token(self, token_id: str) -> None:
        """Revoke an unused token."""
        now = time.time()
        its = tokens.update().filter_by(id=token_id, used_at=None).where(tokens.c.expires_at > now)
        self._change(its.values(expires_at=now))

    def list_tokens(self, *, before: str = "", limit: int = 0) -> list[TokenRow]:
        """Tokens, without their hashes, newest first; a limit of 0 gives all.

        `before` is the id of the last one of the page before.
        """
        columns = [c for c in tokens.c if c.name != "secret_hash"]
        order = sa.tuple_(tokens.c.created_at, tokens.c.id)
        query = sa.select(*columns).order_by(tokens.c.created_at.desc(), tokens.c.id.desc())
        if before:
            last = tokens.alias()
            there = sa.select(last.c.created_at).where(last.c.id == before).scalar_subquery()
            query = query.where(order < sa.tuple_(there, sa.literal(before)))
        return self._rows(query.limit(limit) if limit else query, TokenRow)

    def num_tokens(self) -> int:
        """Number of tokens ever issued."""
        return int(self._values(sa.select(sa.func.count()).select_from(tokens))[0])

    def unused_tokens(self) -> list[str]:
        """Ids of the tokens that may still be used."""
        unused = sa.select(tokens.c.id).where(tokens.c.used_at.is_(None))
        return self._values(unused.where(tokens.c.expires_at > time.time()))

    def promised_names(self) -> set[str]:
        """Names of clients for which a token was ever issued."""
        return set(self._values(sa.select(tokens.c.client)))

    def enrol(self, token_id: str, serial: str, not_after: float, key: str = "") -> None:
        """Use up a token and store the client and the certificate, in one transaction.

        Args:
            token_id: of the token.
            serial: of the certificate.
            not_after: end of its validity, Unix seconds.
            key: SHA-256 of its public key.

        Raises:
            Refusal: BAD_TOKEN when it was used in the meantime.
        """
        now = time.time()
        with self._write() as connection:
            used = connection.execute(
                tokens.update()
                .where(tokens.c.id == token_id, tokens.c.used_at.is_(None))
                .values(used_at=now)
            )
            if used.rowcount != 1:
                raise Refusal(Code.BAD_TOKEN, "Expected an unused token, got one used before.")
            its = tokens.c.client, tokens.c.study, tokens.c.devices
            client, study, devices = connection.execute(
                sa.select(*its).where(tokens.c.id == token_id)
            ).one()
            values = {
                "status": "active", "enrolled_at": now, "revoked_at": None, "study": study or "",
                "devices": devices or 0,
            }  # fmt: skip
            if is_there(connection, clients, name=client):
                connection.execute(clients.update().where(clients.c.name == client).values(values))
            else:
                connection.execute(clients.insert().values(name=client, **values))
            row = {"serial": serial, "client": client, "key": key}
            issued = certificates.insert().values(**row, issued_at=now, not_after=not_after)
            connection.execute(issued)
        self._forget([client])

    def is_enrolled(self, client: str, key: str) -> bool:
        """Whether a client that takes part has a certificate over this key."""
        its = (
            sa.select(sa.func.count())
            .select_from(certificates)
            .join(clients, clients.c.name == certificates.c.client)
        )
        own = (certificates.c.client == client, certificates.c.key == key)
        alive = (certificates.c.revoked_at.is_(None), clients.c.status.not_in(GONE))
        return bool(self._values(its.where(*own, *alive))[0])

    def enrol_again(self, client: str, key: str, serial: str, not_after: float) -> None:
        """Replace a certificate whose device did not get it by another one over the same key.

        Raises:
            Refusal: REVOKED when it was revoked while the other one was being issued.
        """
        its = sa.and_(certificates.c.client == client, certificates.c.key == key)
        with self._write() as connection:
            lost = certificates.delete().where(its, certificates.c.revoked_at.is_(None))
            if not connection.execute(lost).rowcount:
                raise _gone(client, "revoked")
            row = {"serial": serial, "client": client, "key": key}
            issued = certificates.insert().values(**row, issued_at=time.time(), not_after=not_after)
            connection.execute(issued)
        self._forget([client])

    def repeat_renewal(self, client: str, key: str) -> bool:
        """Note that a client is sent its latest certificate again; False if it is not there.

        The note changes no value: see `Updates.repeat_all`.
        """
        its = certificates.update().where(
            certificates.c.client == client, certificates.c.key == key,
            certificates.c.chain.is_not(None),
        )  # fmt: skip
        with self._write() as connection:
            return bool(connection.execute(its.values(chain=certificates.c.chain)).rowcount)

    def renewal(self, client: str) -> RenewalRow | None:
        """A client's latest renewed certificate; None if it has none."""
        columns = [certificates.c[each.name] for each in fields(RenewalRow)]
        latest = sa.select(*columns).order_by(certificates.c.issued_at.desc()).limit(1)
        its = latest.where(certificates.c.client == client, certificates.c.chain.is_not(None))
        return self._row(its, RenewalRow)

    def add_certificate(
        self,
        serial: str,
        client: str,
        not_after: float,
        *,
        key: str = "",
        chain: str = "",
        ended_before: float = 0.0,
    ) -> None:
        """Store a renewed certificate.

        Args:
            serial: of the certificate.
            client: its name.
            not_after: end of its validity, Unix seconds.
            key: SHA-256 of its public key.
            chain: in PEM.
            ended_before: certificates of the client that expired before this time are deleted.

        Raises:
            Refusal: REVOKED when the client was revoked while it was being issued.
        """
        with self._write() as connection:
            status = connection.execute(
                sa.select(clients.c.status).where(clients.c.name == client)
            ).scalar()
            if status in GONE:
                raise _gone(client, status)
            its = certificates.c.client == client
            ended = certificates.c.not_after < ended_before
            connection.execute(certificates.delete().where(its, ended))
            connection.execute(certificates.update().where(its).values(chain=None))
            row = {"serial": serial, "client": client, "key": key, "chain": chain}
            issued = certificates.insert().values(**row, issued_at=time.time(), not_after=not_after)
            connection.execute(issued)

    def check_certificate(self, serial: str, client: str) -> None:
        """Check that a certificate was issued here, for a client that is not revoked.

        Raises:
            Refusal: UNKNOWN_CLIENT or REVOKED.
        """
        shut_outs = self._shut_outs
        found = self._values(_REVOKED_AT, {"serial": serial, "client": client})
        if not found:
            raise Refusal(
                Code.UNKNOWN_CLIENT,
                f"Expected a certificate that this server issued to {client!r}: enrol again.",
            )
        if found[0] is not None:
            raise _gone(client, self.client_status(client))
        if shut_outs == self._shut_outs:  # nobody was shut out while it was read
            self._checked[client] = serial

    def is_checked(self, serial: str, client: str) -> bool:
        """Whether `check_certificate` has found it valid, and nobody has shut the client out since.

        From memory. What another process has changed counts from `revoked_clients` on.
        """
        return self._checked.get(client) == serial

    def revoke(self, client: str) -> bool:
        """Revoke a client, its certificates and its unused tokens; False for an unknown client."""
        return self._shut_out(client, "revoked")

    def leave(self, client: str) -> bool:
        """Record that a client has left; False for an unknown client."""
        return self._shut_out(client, "left")

    def _shut_out(self, client: str, status: str) -> bool:
        with self._write() as connection:
            now = time.time()
            connection.execute(
                tokens.update()
                .where(tokens.c.client == client, tokens.c.used_at.is_(None))
                .values(
                    expires_at=sa.case((tokens.c.expires_at < now, tokens.c.expires_at), else_=now)
                )
            )
            connection.execute(
                certificates.update()
                .where(certificates.c.client == client, certificates.c.revoked_at.is_(None))
                .values(revoked_at=now)
            )
            done = connection.execute(
                clients.update()
                .where(clients.c.name == client)
                .values(status=status, revoked_at=now)
            )
        self._forget([client])
        return done.rowcount == 1

    def revoked_clients(self) -> set[str]:
        """Names of the clients that are revoked or have left."""
        found = set(self._values(_GONE))
        self._forget(found & self._checked.keys())
        return found

    def _forget(self, clients_: Iterable[str]) -> None:
        self._shut_outs += 1
        for client in clients_:
            self._checked.pop(client, None)

    def client_status(self, client: str) -> str | None:
        """`active`, `revoked`, `left`, or None for an unknown client."""
        query = sa.select(clients.c.status).where(clients.c.name == client)
        return next(iter(self._values(query)), None)

    def list_clients(self) -> list[ClientRow]:
        """All clients by name, with the expiry of their newest certificate."""
        newest = (
            sa.select(certificates.c.client, sa.func.max(certificates.c.not_after).label("until"))
            .group_by(certificates.c.client)
            .subquery()
        )
        return self._rows(
            sa.select(clients, newest.c.until.label("certificate_until"))
            .join(newest, newest.c.client == clients.c.name, isouter=True)
            .order_by(clients.c.name),
            ClientRow,
        )


def _gone(client: str, status: str | None) -> Refusal:
    what = "has left" if status == "left" else "was revoked"
    return Refusal(Code.REVOKED, f"The client {client!r} {what}: ask the operator for a token.")
