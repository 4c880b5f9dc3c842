"""The gRPC services: enrolment, attendance, upload and download."""
