"""The ledger's tables about operators and their actions. Times are seconds since the epoch, UTC.

Invariant: no table holds a secret. Passwords are scrypt hashes; session ids, API tokens and login
links are SHA-256 hashes of 256 random bits.
"""

import sqlalchemy as sa

from fedloom.server.ledger.tables import meta

users = sa.Table(
    "users",
    meta,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("scope", sa.String, nullable=False),
    sa.Column("password", sa.String, nullable=False),  # with its parameters; no password if empty
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("seen_at", sa.Float),
    sa.Column("studies", sa.JSON(none_as_null=True)),  # NULL: not limited to any
)
sessions = sa.Table(
    "sessions",
    meta,
    sa.Column("id", sa.String, primary_key=True),  # hash
    sa.Column("name", sa.String, nullable=False, index=True),
    sa.Column("how", sa.String, nullable=False),  # password, link or oidc
    sa.Column(
        "scope", sa.String, nullable=False
    ),  # for a password session, the user's scope applies
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("seen_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float, nullable=False, index=True),
)
api_tokens = sa.Table(
    "api_tokens",
    meta,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("secret_hash", sa.String, nullable=False),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("scope", sa.String, nullable=False),
    sa.Column("made_by", sa.String, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float),
    sa.Column("used_at", sa.Float),
    sa.Column("revoked_at", sa.Float),
    sa.Column("studies", sa.JSON(none_as_null=True)),  # as of users
)
login_links = sa.Table(
    "login_links",
    meta,
    sa.Column("id", sa.String, primary_key=True),  # hash
    sa.Column("name", sa.String, nullable=False),
    sa.Column("scope", sa.String, nullable=False),
    sa.Column("expires_at", sa.Float, nullable=False),
    sa.Column("used_at", sa.Float),
)
audit = sa.Table(
    "audit",
    meta,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Float, nullable=False, index=True),
    sa.Column("who", sa.String, nullable=False, index=True),
    sa.Column("how", sa.String, nullable=False),
    sa.Column("action", sa.String, nullable=False, index=True),
    sa.Column("subject", sa.String, nullable=False, index=True),
    sa.Column("detail", sa.Text, nullable=False),  # JSON, as it was hashed
    sa.Column("previous", sa.String(64), nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)
