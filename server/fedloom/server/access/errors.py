"""Why somebody is not let in, or not further."""

from fedloom.protocol.errors import DeniedError


class UnauthenticatedError(DeniedError):
    """Nobody has proved who they are."""


class ForbiddenError(DeniedError):
    """Somebody asks for more than they may, or another site asks in their name."""


class TooManyTriesError(DeniedError):
    """Somebody failed too often to try again now.

    Attributes:
        wait_s: seconds to wait.
    """

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.wait_s = wait_s
