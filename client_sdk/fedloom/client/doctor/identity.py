"""The device's own identity: is it there, is it whole, and how long does it last?"""

from datetime import UTC, datetime, timedelta

from fedloom.client.config import ClientConfig
from fedloom.client.doctor.finding import CheckResult, fail, ok, warn
from fedloom.client.state.identity_files import ENROL, StoredIdentity, read, signing_key
from fedloom.protocol.errors import FedloomError

__all__ = ["ENROL", "StoredIdentity", "certificate", "held", "now_utc"]


def held(config: ClientConfig) -> tuple[StoredIdentity | None, CheckResult]:
    """Read the identity; None with the reason where there is none to go by."""
    try:
        found = read(config.state_dir)
        key = signing_key(config.state_dir)
    except FedloomError as error:
        said, _, mend = str(error).partition(". ")
        return None, fail("identity", said, mend.rstrip("."))
    if key is None:
        return found, warn(
            "identity", f"{found.peer.client}, without the key that the server signs by",
            "nothing: the client asks for it when it connects",
        )  # fmt: skip
    peer = found.peer
    return found, ok("identity", f"{peer.client} of the federation {peer.federation}")


def certificate(found: StoredIdentity, config: ClientConfig, now: datetime) -> CheckResult:
    """How long the certificate lasts, by a clock.

    Args:
        found: the identity.
        config: knows the enrolment port, where one that has ended is renewed.
        now: the server's time, or this device's where that is not known.
    """
    until = f"{found.end:%Y-%m-%d %H:%M} UTC"
    if now < found.begin:
        return fail(
            "certificate", f"it begins {found.begin:%Y-%m-%d %H:%M} UTC, which is not yet",
            "set this device's clock",
        )  # fmt: skip
    if now >= found.end:
        if config.enrolment:
            return warn(
                "certificate", f"it ended {until}",
                f"nothing: the client renews it at {config.enrolment} when it runs, as long as "
                f"the server allows (7 days unless it says otherwise); else {ENROL}",
            )  # fmt: skip
        return fail("certificate", f"it ended {until}", ENROL)
    left, life = found.end - now, found.end - found.begin
    if left < life / 4:  # due since two thirds
        return warn(
            "certificate", f"it ends {until}, in {_span(left)}, and is not renewed yet",
            "let the client run: it renews by itself at two thirds of a certificate's life",
        )  # fmt: skip
    return ok("certificate", f"until {until}, another {_span(left)}; the client renews it itself")


def now_utc() -> datetime:
    """This device's clock."""
    return datetime.now(UTC)


def _span(left: timedelta) -> str:
    days, hours = left.days, left.seconds // 3600
    if days >= 2:
        return f"{days} days"
    hours += 24 * days
    return f"{hours} hours" if hours >= 2 else f"{left.seconds // 60 + 1440 * days} minutes"
