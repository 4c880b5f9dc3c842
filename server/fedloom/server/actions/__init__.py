"""Actions of operators, for the API and the console; each is recorded in the audit trail."""
