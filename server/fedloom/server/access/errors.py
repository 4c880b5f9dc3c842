"""Errors of authentication and authorisation."""

import math

from fedloom.protocol.errors import DeniedError


class UnauthenticatedError(DeniedError):
    """The request has no valid credential."""


class ForbiddenError(DeniedError):
    """The principal's scope does not allow the request, or another site sent it."""


class HiddenError(DeniedError):
    """The route does not exist for a principal that is limited to studies."""


class TooManyTriesError(DeniedError):
    """Too many failed logins.

    Attributes:
        wait_s: seconds to wait.
    """

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.wait_s = wait_s

    @property
    def retry_after(self) -> str:
        """Value of the header `Retry-After`: whole seconds, after which the wait is over."""
        return str(math.ceil(self.wait_s))
