"""Actions of operators, recorded in the audit trail, that JSON routes and console pages share."""
