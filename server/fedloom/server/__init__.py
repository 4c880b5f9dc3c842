"""The aggregation server: a pure round engine and the shell that gives it sockets and files."""

import fedloom.protocol  # noqa: F401 - before gRPC is imported
