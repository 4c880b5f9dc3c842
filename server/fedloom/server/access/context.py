"""The context of authentication: operators' accounts, and the audit trail."""

from dataclasses import dataclass, field

from fedloom.server.access.audit_log import AuditLog
from fedloom.server.ledger.access.accounts import Accounts
from fedloom.server.threads import Thread


@dataclass(slots=True, kw_only=True)
class AccessContext:
    """What authenticates operators.

    Attributes:
        in_access: thread that reads and writes accounts, so that no round waits for them.
        in_passwords: thread that hashes passwords one at a time, as each takes 64 MiB.
    """

    accounts: Accounts
    audit_log: AuditLog
    in_access: Thread = field(default_factory=lambda: Thread("access"))
    in_passwords: Thread = field(default_factory=lambda: Thread("passwords"))

    def close(self) -> None:
        """End the threads."""
        self.in_passwords.close()
        self.in_access.close()
