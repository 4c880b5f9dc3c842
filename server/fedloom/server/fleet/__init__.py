"""The gRPC services: enrolment, attendance, upload and download."""

import fedloom.protocol.transport  # noqa: F401 - before gRPC is imported
