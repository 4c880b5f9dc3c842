"""The device's own identity: is it there, is it whole, and how long does it last?"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from fedloom.client.config import ClientConfig
from fedloom.client.doctor.finding import Finding, fail, ok, warn
from fedloom.protocol import identity
from fedloom.protocol.errors import FedloomError
from fedloom.protocol.private_files import read_private

ENROL = "enrol again with a new token: `fedloom client enroll`"


@dataclass(frozen=True, slots=True)
class Held:
    """An identity as it lies on disk.

    Attributes:
        peer: whom the certificate names.
        path: of the key with its chain.
        root_pem: what the server's certificate leads to.
        begin: of the certificate, UTC.
        end: likewise.
    """

    peer: identity.Peer
    path: Path
    root_pem: bytes
    begin: datetime
    end: datetime


def held(config: ClientConfig) -> tuple[Held | None, Finding]:
    """Read the identity; None with the reason where there is none to go by."""
    path, root = config.state_dir / "identity.pem", config.state_dir / "root.pem"
    try:
        pem, root_pem = read_private(path), read_private(root)
        peer = identity.peer_from_pem(pem)
        key = identity.key_from_pem(pem)
        begin, end = identity.validity(pem)
    except FileNotFoundError as error:
        return None, fail("identity", f"there is no {error.filename}", ENROL)
    except OSError as error:
        return None, fail(
            "identity", f"{error.filename} cannot be read: {error.strerror}",
            f"run this as the owner of {config.state_dir}",
        )  # fmt: skip
    except FedloomError as error:
        return None, fail("identity", str(error), f"restore {path}, or {ENROL}")
    if key.public_key() != x509.load_pem_x509_certificate(pem).public_key():
        return None, fail("identity", f"key and certificate in {path} do not fit", ENROL)
    found = Held(peer, path, root_pem, begin, end)
    if not (config.state_dir / "signing.pub").exists():
        return found, warn(
            "identity", f"{peer.client}, without the key that the server signs by",
            "nothing: the client asks for it when it connects",
        )  # fmt: skip
    return found, ok("identity", f"{peer.client} of the federation {peer.federation}")


def certificate(found: Held, config: ClientConfig, now: datetime) -> Finding:
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
