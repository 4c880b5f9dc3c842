"""Commands of a device: enrolment, the agent, diagnosis, policy and log."""
