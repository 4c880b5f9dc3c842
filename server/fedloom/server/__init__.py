"""The aggregation server: a pure round engine and the shell that gives it sockets and files."""
