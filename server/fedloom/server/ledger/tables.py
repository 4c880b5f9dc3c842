"""The tables of the ledger. Times are seconds since the epoch, UTC.

An update's `round` is the one in which its client was asked, and part of its address; `counts_in`
is the round whose sum it is in, which may be a later one with buffers.
"""

import sqlalchemy as sa

meta = sa.MetaData()

versions = sa.Table(
    "schema_version",
    meta,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("readable_from", sa.Integer),  # least version whose servers work with it; NULL: this
)
clients = sa.Table(
    "clients",
    meta,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("status", sa.String, nullable=False),
    sa.Column("enrolled_at", sa.Float, nullable=False),
    sa.Column("revoked_at", sa.Float),
    sa.Column("seen_at", sa.Float),
    sa.Column("version", sa.String),  # of its SDK, as reported
    sa.Column("hold", sa.String),  # quarantine or drain
    sa.Column("hold_reason", sa.String),
    sa.Column("held_at", sa.Float),
    sa.Column("note", sa.String),  # the operator's
    sa.Column("failures", sa.Integer),  # recent failed and refused tasks; NULL for none
    sa.Column("failed_at", sa.Float),  # when the last of all such tasks ended; the next three too
    sa.Column("failed_why", sa.String),
    sa.Column("failed_run", sa.String),
    sa.Column("failed_round", sa.Integer),
    sa.Column("study", sa.String),  # empty or NULL: none
    sa.Column("devices", sa.Integer),  # most in a sum of this site; NULL or 0 for a device
    sa.Column("due_at", sa.Float),  # when it checks in next; NULL: it holds a stream
    sa.Index("clients_by_due", "due_at"),
)
labels = sa.Table(
    "client_labels",
    meta,
    sa.Column("client", sa.String, primary_key=True),
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("own", sa.Boolean, primary_key=True),  # set by the device, not by the operator
    sa.Column("value", sa.String, nullable=False),
    sa.Index("labels_by_value", "name", "value", "client"),
)
certificates = sa.Table(
    "certificates",
    meta,
    sa.Column("serial", sa.String, primary_key=True),
    sa.Column("client", sa.ForeignKey("clients.name"), nullable=False, index=True),
    sa.Column("issued_at", sa.Float, nullable=False),
    sa.Column("not_after", sa.Float, nullable=False),
    sa.Column("revoked_at", sa.Float),
    # Of renewed certificates: SHA-256 of the public key, and of the latest also the chain in PEM.
    sa.Column("key", sa.String),
    sa.Column("chain", sa.Text),
)
tokens = sa.Table(
    "tokens",
    meta,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("secret_hash", sa.String, nullable=False),
    sa.Column("client", sa.String, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float, nullable=False),
    sa.Column("used_at", sa.Float),
    sa.Column("study", sa.String),  # of the client that enrols by it
    sa.Column("devices", sa.Integer),  # likewise
    sa.Index("tokens_by_age", "created_at", "id"),
)
runs = sa.Table(
    "runs",
    meta,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("spec", sa.JSON, nullable=False),
    sa.Column("state", sa.String, nullable=False),
    sa.Column("reason", sa.String, nullable=False, default=""),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("ended_at", sa.Float),
    sa.Column("model", sa.String, nullable=False),
    sa.Column("strategy_state", sa.String),
    sa.Column("committed", sa.Integer, nullable=False, default=0),
    sa.Column("last_round", sa.Integer, nullable=False, default=0),
    sa.Column("abandoned_in_a_row", sa.Integer, nullable=False, default=0),
    sa.Column("privacy", sa.JSON),  # claim of the run
    sa.Column("goals", sa.JSON(none_as_null=True)),  # goal and quorum, if changed
    sa.Column("best", sa.JSON(none_as_null=True)),  # its best model, once a round evaluated one
    sa.Column("priority", sa.Integer),
    sa.Column("share", sa.Float),
    sa.Column("study", sa.String),  # empty or NULL: none
    sa.Column("upstream", sa.String),  # name of this server at the parent; NULL: a run of its own
)
rounds = sa.Table(
    "rounds",
    meta,
    sa.Column("run", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("state", sa.String, nullable=False),
    sa.Column("reason", sa.String, nullable=False, default=""),
    sa.Column("cause", sa.String),  # code, if it was abandoned
    sa.Column("opened_at", sa.Float, nullable=False),
    sa.Column("deadline_at", sa.Float, nullable=False),
    sa.Column("closed_at", sa.Float),
    sa.Column("model_in", sa.String, nullable=False),
    sa.Column("model_out", sa.String),
    sa.Column("training", sa.JSON),
    sa.Column("evaluation", sa.JSON),
    sa.Column("privacy", sa.JSON),  # epsilon and delta after this round, if private
    sa.Column("underflow", sa.Float),  # share of values that a narrow sum rounded to zero
    sa.Column("undone_at", sa.Float),  # when a rollback undid it
    sa.Column("upstream", sa.JSON(none_as_null=True)),  # of a parent's round: goal and trained
    sa.Column("summary", sa.JSON(none_as_null=True)),  # counts of its members, once it is over
    sa.Index("rounds_by_state", "state"),
    sa.Index("rounds_by_model", "model_in", "state"),
)
cohorts = sa.Table(
    "cohorts",
    meta,
    sa.Column("run", sa.String, primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("client", sa.String, primary_key=True),
    sa.Column("phase", sa.String, nullable=False),
    sa.Column("reason", sa.String, nullable=False, default=""),
    sa.Column("offered_at", sa.Float),
    sa.Column("places", sa.Integer),  # devices that a site may send; NULL for 1
    # The member's record, of `fedloom.server.rounds.member_records`. NULL after a kill of the
    # server, and for what it did not see.
    sa.Column("took_at", sa.Float),
    sa.Column("download_began_at", sa.Float),
    sa.Column("download_ended_at", sa.Float),
    sa.Column("training_began_at", sa.Float),
    sa.Column("upload_began_at", sa.Float),
    sa.Column("upload_ended_at", sa.Float),
    sa.Column("ended_at", sa.Float),
    sa.Column("bytes_down", sa.BigInteger),
    sa.Column("bytes_up", sa.BigInteger),
    sa.Column("retries", sa.Integer),
    sa.Column("code", sa.String),
    sa.ForeignKeyConstraint(["run", "round"], ["rounds.run", "rounds.number"]),
    sa.Index("cohorts_by_client", "client", "offered_at", "phase"),
)
populations = sa.Table(  # clients that a run's rounds could draw; rows are only added
    "populations",
    meta,
    sa.Column("run", sa.String, primary_key=True),
    sa.Column("client", sa.String, primary_key=True),
    sa.Index("populations_by_client", "client", "run"),
)
privacy_budgets = sa.Table(
    "privacy_budgets",
    meta,
    sa.Column("label", sa.String, primary_key=True),  # name or name=value; empty for all clients
    sa.Column("epsilon", sa.Float, nullable=False),
    sa.Column("delta", sa.Float, nullable=False),
    sa.Column("allow_public", sa.Boolean, nullable=False),
    sa.Column("set_at", sa.Float, nullable=False),
    sa.Column("set_by", sa.String, nullable=False),
)
updates = sa.Table(
    "updates",
    meta,
    sa.Column("run", sa.String, primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("client", sa.String, primary_key=True),
    sa.Column("identity", sa.String, nullable=False),
    sa.Column("file", sa.String, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("weight", sa.Float, nullable=False),
    sa.Column("norm", sa.Float, nullable=False),
    sa.Column("training", sa.JSON, nullable=False),
    sa.Column("evaluation", sa.JSON, nullable=False),
    sa.Column("accepted_at", sa.Float, nullable=False),
    sa.Column("counts_in", sa.Integer),
    sa.Column("staleness", sa.Integer),
    sa.Column("devices", sa.Integer),  # whose updates it sums; NULL for 1
    sa.Column("members", sa.JSON(none_as_null=True)),  # of a site that names them: a tree
    sa.Column("gate", sa.String),  # that accepted it; NULL: the driver
    sa.Column("sealed_in", sa.String),  # file of a gate's sum that has it; set once
    sa.Column("repeats", sa.Integer),  # uploads of it after its acceptance; NULL for none
    sa.Index("updates_by_sum", "run", "counts_in", "staleness"),
    sa.Index("updates_by_client", "client", "accepted_at", "staleness"),
    sa.ForeignKeyConstraint(["run", "round"], ["rounds.run", "rounds.number"]),
)
masking_sessions = sa.Table(  # sets are lists of names; NULL before they are fixed
    "masking_sessions",
    meta,
    sa.Column("run", sa.String, primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("session", sa.Integer, primary_key=True),  # its number in the round, from 0
    sa.Column("state", sa.String, nullable=False),
    sa.Column("reason", sa.String, nullable=False, default=""),
    sa.Column("width_class", sa.String, nullable=False),
    sa.Column("members", sa.JSON, nullable=False),
    sa.Column("shared", sa.JSON(none_as_null=True)),
    sa.Column("masked", sa.JSON(none_as_null=True)),
    sa.Column("revealed", sa.JSON(none_as_null=True)),
    sa.Column("opened_at", sa.Float, nullable=False),
    sa.Column("deadline_at", sa.Float, nullable=False),
    sa.ForeignKeyConstraint(["run", "round"], ["rounds.run", "rounds.number"]),
)
masking_messages = sa.Table(
    "masking_messages",
    meta,
    sa.Column("run", sa.String, primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("session", sa.Integer, primary_key=True),
    sa.Column("phase", sa.String, primary_key=True),
    sa.Column("client", sa.String, primary_key=True),
    sa.Column("content", sa.LargeBinary),  # deleted when the session is over
    sa.Column("digest", sa.String, nullable=False),  # SHA-256
    sa.Column("stored_at", sa.Float, nullable=False),
    sa.ForeignKeyConstraint(
        ["run", "round", "session"],
        ["masking_sessions.run", "masking_sessions.round", "masking_sessions.session"],
    ),
)
masking_blames = sa.Table(  # members that spoiled a session, or were in one that was spoiled
    "masking_blames",
    meta,
    sa.Column("run", sa.String, primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("session", sa.Integer, primary_key=True),
    sa.Column("client", sa.String, primary_key=True),
    sa.Column("cause", sa.String, primary_key=True),  # of `fedloom.server.ledger.masking.blames`
    sa.Column("at", sa.Float, nullable=False),
    sa.ForeignKeyConstraint(
        ["run", "round", "session"],
        ["masking_sessions.run", "masking_sessions.round", "masking_sessions.session"],
    ),
    sa.Index("masking_blames_by_client", "client", "at"),
)
refusals = sa.Table(
    "refusals",
    meta,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("client", sa.String, nullable=False),
    sa.Column("run", sa.String, nullable=False),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("code", sa.String, nullable=False, index=True),
    sa.Column("message", sa.String, nullable=False),
    sa.Column("detail", sa.String, nullable=False, default=""),
    sa.Column("times", sa.Integer),  # equal refusals in this row; NULL for one
    sa.Index("refusals_by_run", "run", "id"),
)
models = sa.Table(
    "models",
    meta,
    sa.Column("run", sa.String, primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("digest", sa.String, nullable=False, index=True),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    # The note of the strategy's state, as in `runs`: "null" without state, NULL if not kept.
    sa.Column("state", sa.String),
    sa.Column("pruned", sa.Integer),  # NULL for a kept model; see `fedloom.server.ledger.prunes`
    sa.Index("models_by_time", "created_at", "run", "round"),
)
messages = sa.Table(  # of a Flower ServerApp; deleted when its run has ended
    "messages",
    meta,
    sa.Column("run", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("client", sa.String, nullable=False),
    sa.Column("digest", sa.String, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("lookups", sa.Integer, nullable=False),
    sa.Column("round", sa.Integer),  # that sends it; NULL while it waits
    sa.Column("answered", sa.Boolean),  # whether its reply is stored; NULL before its end
    sa.Column("error", sa.String),
)
requests = sa.Table(
    "requests",
    meta,
    sa.Column("id", sa.String, primary_key=True),  # chosen by the requester
    sa.Column("at", sa.Float, nullable=False, index=True),
    sa.Column("reply", sa.JSON, nullable=False),
)
promotions = sa.Table(
    "promotions",
    meta,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("run", sa.String, nullable=False, index=True),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("digest", sa.String, nullable=False, index=True),
    sa.Column("note", sa.String, nullable=False, default=""),
)
model_objects = sa.Table(  # models in the object store, if the server has one
    "model_objects",
    meta,
    sa.Column("digest", sa.String, primary_key=True),
    sa.Column("object", sa.String, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("held_at", sa.Float, nullable=False),  # when it was written or held
)
spool_objects = sa.Table(  # files of the spool in the object store; deleted with their round
    "spool_objects",
    meta,
    sa.Column("object", sa.String, primary_key=True),
    sa.Column("file", sa.String, nullable=False),
    sa.Column("run", sa.String, nullable=False),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("header", sa.LargeBinary, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("parts", sa.JSON, nullable=False),  # CRC-32C and suffix of each durable part
    sa.Column("begun_at", sa.Float, nullable=False),
    sa.Index("spool_objects_by_file", "file"),
    sa.Index("spool_objects_by_round", "run", "round"),
)
store_claims = sa.Table(  # the object store of this ledger: one row, or none
    "store_claims",
    meta,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("claimed_at", sa.Float, nullable=False),
)
drivers = sa.Table(  # which of several servers drives: one row, whose epoch rises
    "drivers",
    meta,
    sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("holder", sa.String, nullable=False),
    sa.Column("name", sa.String, nullable=False),  # of the holder's machine, for messages
    sa.Column("renewed_at", sa.Float, nullable=False),  # by the database's clock; 0: released
    sa.Column("version", sa.String),  # of the holder's software
    sa.Column("gates", sa.Boolean),  # whether the holder reads what gates tell
    sa.Column("ledger_version", sa.Integer),  # of the holder's software; NULL: 4
)
_number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
gates = sa.Table(  # servers beside the driver that serve devices
    "gates",
    meta,
    sa.Column("id", sa.String, primary_key=True),  # of the process
    sa.Column("name", sa.String, nullable=False),  # of its machine, for messages
    sa.Column("renewed_at", sa.Float, nullable=False),  # by the database's clock
    sa.Column("ledger_version", sa.Integer),  # of its software; NULL: 4
)
inbox = sa.Table(  # what gates tell the driver, which deletes it
    "inbox",
    meta,
    sa.Column("id", _number, primary_key=True),
    sa.Column("gate", sa.String, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),  # of the driver that is told
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("session", sa.String, nullable=False),
    sa.Column("client", sa.String, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
mail = sa.Table(  # what the driver tells gates, which delete it
    "mail",
    meta,
    sa.Column("id", _number, primary_key=True),
    sa.Column("gate", sa.String, nullable=False, index=True),
    sa.Column("session", sa.String, nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
wrapped_keys = sa.Table(  # keys of a server, encrypted under a key that is not in the ledger
    "wrapped_keys",
    meta,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
    sa.Column("written_at", sa.Float, nullable=False),
)
