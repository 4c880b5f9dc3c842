"""What the engine says to an operator whose command does not fit the moment."""

from fedloom.protocol.errors import UsageError


class OperatorRefused(UsageError):  # noqa: N818 - a refusal is the field's word for it
    """An operator's command cannot be followed now; nothing has changed.

    It is the only exception that handling an event raises.
    """
