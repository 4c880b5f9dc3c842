"""Studies: a label of clients and runs. A run of a study has only clients of that study."""

import re

from fedloom.protocol.errors import UsageError

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


def check_study(study: str) -> None:
    """Check the name of a study; empty for none.

    Raises:
        UsageError: it is no name.
    """
    if study and not _NAME.fullmatch(study):
        raise UsageError(
            "Expected a study's name of at most 40 lower-case letters, digits, - and _, with a "
            f"letter or a digit first, got {study[:60]!r}."
        )
