"""Checks of the device's identity: its files, and the validity of its certificate."""

from datetime import datetime, timedelta

from fedloom.client.config import ClientConfig
from fedloom.client.doctor.finding import CheckResult, fail, ok, warn
from fedloom.client.state.identity_files import ENROL, StoredIdentity, read, signing_key
from fedloom.protocol.errors import FedloomError


def held(config: ClientConfig) -> tuple[StoredIdentity | None, CheckResult]:
    """Read the identity; None with the error if it is missing or damaged."""
    try:
        found = read(config.state_dir)
        key = signing_key(config.state_dir)
    except FedloomError as error:
        said, _, mend = str(error).partition(". ")
        return None, fail("identity", said, mend.rstrip("."))
    if key is None:
        return found, warn(
            "identity", f"{found.peer.client}, without the server's signing key",
            "nothing: the client requests it when it connects",
        )  # fmt: skip
    peer = found.peer
    return found, ok("identity", f"{peer.client} of the federation {peer.federation}")


def certificate(found: StoredIdentity, config: ClientConfig, now: datetime) -> CheckResult:
    """Check the certificate's validity.

    Args:
        found: the identity.
        config: has the enrolment port, where an expired certificate is renewed.
        now: the server's time; this device's if that is unknown.
    """
    until = f"{found.end:%Y-%m-%d %H:%M} UTC"
    if now < found.begin:
        return fail(
            "certificate", f"it is valid only from {found.begin:%Y-%m-%d %H:%M} UTC",
            "set this device's clock",
        )  # fmt: skip
    if now >= found.end:
        if config.enrolment:
            return warn(
                "certificate", f"it expired on {until}",
                f"start the client: it renews the certificate at {config.enrolment}, within the "
                f"server's `late_renewal_s` (default: 7 days); after that, {ENROL}",
            )  # fmt: skip
        return fail("certificate", f"it expired on {until}", ENROL)
    left, life = found.end - now, found.end - found.begin
    if left < life / 4:  # due since two thirds
        return warn(
            "certificate", f"it expires on {until}, in {_span(left)}, and is not renewed yet",
            "let the client run: it renews a certificate at two thirds of its life",
        )  # fmt: skip
    return ok("certificate", f"valid until {until}, for {_span(left)}; renewed automatically")


def _span(left: timedelta) -> str:
    days, hours = left.days, left.seconds // 3600
    if days >= 2:
        return f"{days} days"
    hours += 24 * days
    return f"{hours} hours" if hours >= 2 else f"{left.seconds // 60 + 1440 * days} minutes"
