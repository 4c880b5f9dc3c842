"""Errors of operators' requests, each with its HTTP status."""

from fedloom.protocol.errors import UsageError


class NotFoundError(UsageError):
    """No object has this name. HTTP 404."""


class ConflictError(UsageError):
    """The request does not fit the current state. HTTP 409."""
