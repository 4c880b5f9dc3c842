"""The identity of a device: enrolment, renewal, departure, and trust in the server."""
