"""Commands of an operator: runs, rounds, models, clients, users and the audit trail."""
