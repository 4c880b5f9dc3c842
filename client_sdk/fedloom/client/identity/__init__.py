"""The identity of a device: enrolment, renewal and departure."""
