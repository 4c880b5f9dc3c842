"""The error for a command of an operator that does not fit the state."""

from fedloom.protocol.errors import UsageError


class OperatorRefused(UsageError):  # noqa: N818 - named after the refusal
    """An operator's command does not fit the state of the round or run; nothing has changed.

    It is the only exception that handling an event raises.
    """
