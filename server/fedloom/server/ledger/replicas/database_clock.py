"""The clock of PostgreSQL, by which replicas compare times."""

import sqlalchemy as sa

NOW = sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp()), sa.Float)
"""Seconds since the epoch, also within a transaction."""
