"""The certificate authority of a federation, and its folder.

    DIR/             0700
      root.key       0600  signs only issuing authorities; may be kept offline
      root.pem             trusted by every device
      issuing.pem    0600  key and certificate that sign leaves
      server.pem     0600  the server's key, leaf, issuing authority and root

A key and its certificate share a file, so a crash cannot separate them. `certificates` builds the
certificates.

Invariants: an authority is created atomically and never overwritten; leaves of an earlier issuing
authority stay valid after its renewal, as every peer presents its own chain and trusts only the
root.
"""

import logging
import secrets
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from fedloom.protocol.atomic_files import sync_directory
from fedloom.protocol.errors import Code, IntegrityError, Refusal, UsageError
from fedloom.protocol.trust import tokens
from fedloom.protocol.trust.identity import (
    UNREADABLE,
    Peer,
    check_federation,
    generate_key,
    key_from_pem,
    key_to_pem,
    peer_from_certificate,
    seconds_until_renewal,
)
from fedloom.protocol.trust.private_files import private_directory, read_private, write_private
from fedloom.server.pki import certificates
from fedloom.server.pki.certificates import Issuer

_log = logging.getLogger(__name__)

RETIRED = "retired.pem"
"""Certificates of earlier issuing authorities, without keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerBundle:
    """A server's key and certificates for TLS.

    Attributes:
        key_pem: its private key, PKCS#8.
        chain_pem: leaf, issuing authority and root; the root is included for devices that know
            only its pin (see `fedloom.protocol.trust.bootstrap`).
        root_pem: the root that clients' certificates must lead to.
        names: DNS names and addresses in the leaf.
        not_before: start of the leaf's validity, UTC.
        not_after: end of the leaf's validity, UTC.
    """

    key_pem: bytes = field(repr=False)
    chain_pem: bytes
    root_pem: bytes
    names: tuple[str, ...]
    not_before: datetime
    not_after: datetime


class Authority:
    """A federation's root and issuing authority.

    Safe to use from several threads: if two renew the issuing authority at once, both results are
    valid and one is kept.

    Attributes:
        federation: the name of the federation.
        root_pem: the root certificate.
        root_pin: SHA-256 of its DER, 32 bytes; part of every token.
    """

    def __init__(
        self,
        directory: Path,
        root: x509.Certificate,
        issuer: Issuer,
        write: Callable[[Path, bytes], None] = write_private,
    ) -> None:
        self._directory = directory
        self._write = write
        self._root = root
        self._issuer = issuer
        retired = directory / RETIRED
        self._retired = retired.read_bytes() if retired.exists() else b""
        self.federation = certificates.federation_of(root)
        self.root_pem = root.public_bytes(Encoding.PEM)
        self.root_pin = tokens.root_pin(self.root_pem)

    @classmethod
    def create(cls, directory: Path, federation: str, now: datetime) -> "Authority":
        """Create a root and an issuing authority in `directory`, which must be missing or empty.

        Raises:
            UsageError: `directory` is not empty, or the name is not allowed.
        """
        check_federation(federation)
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise UsageError(
                f"{directory} is not empty, and an authority is never overwritten: every device "
                "enrolled with it would be locked out. Choose another folder, or move this one away"
            )
        directory.parent.mkdir(parents=True, exist_ok=True)
        draft = directory.with_name(f".{directory.name}.{secrets.token_hex(8)}")
        try:
            _write_new(private_directory(draft), federation, now)
            draft.rename(directory)  # atomic; replaces only an empty folder
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        sync_directory(directory.parent)
        return cls.load(directory)

    @classmethod
    def load(
        cls, directory: Path, write: Callable[[Path, bytes], None] = write_private
    ) -> "Authority":
        """Open the authority in `directory`.

        Args:
            directory: of its files.
            write: writes a key or a certificate to its file.

        Raises:
            UsageError: it has no authority, or other users can read its files.
            IntegrityError: its files do not belong together.
        """
        try:
            root_pem = (directory / "root.pem").read_bytes()
            issuing_pem = read_private(directory / "issuing.pem")
        except FileNotFoundError as error:
            raise UsageError(
                f"There is no certificate authority in {directory} ({error.filename} is missing): "
                "make one with 'fedloom server init'"
            ) from None
        try:
            root = x509.load_pem_x509_certificate(root_pem)
            issuing = x509.load_pem_x509_certificate(issuing_pem)
            issuing.verify_directly_issued_by(root)
            return cls(directory, root, _issuer(key_from_pem(issuing_pem), issuing), write)
        except (*UNREADABLE, TypeError, InvalidSignature) as error:
            raise IntegrityError(
                f"The certificates in {directory} do not belong together ({error!r}): restore the "
                "folder from a backup"
            ) from error

    @property
    def trusted_pem(self) -> bytes:
        """The root and its issuing authorities, current and earlier, in PEM.

        With these, clients need to send only their leaf, which saves eight KiB of memory per
        connection.
        """
        return self.root_pem + _pem(self._issuer.certificate) + self._retired

    @property
    def until(self) -> datetime:
        """Earlier expiry of the root and the issuing authority, UTC."""
        return min(each.not_valid_after_utc for each in (self._root, self._issuer.certificate))

    def ends(self) -> dict[str, datetime]:
        """Expiry of the certificates `root`, `issuer` and, if there is one, `server`, UTC."""
        found = {
            "root": self._root.not_valid_after_utc,
            "issuer": self._issuer.certificate.not_valid_after_utc,
        }
        server = self._stored_bundle()
        return found if server is None else found | {"server": server.not_after}

    def issue_client(
        self, csr_pem: bytes, client: str, ttl_s: float, now: datetime
    ) -> tuple[bytes, Peer]:
        """Certify the key of a certificate request for `client`; its names are ignored.

        Args:
            csr_pem: PKCS#10 in PEM over a P-256 key.
            client: the name of the token or of the certificate to renew.
            ttl_s: seconds of validity from `now`, at most until the issuing authority expires.
            now: the time, UTC.

        Returns:
            The chain in PEM, leaf first, then the issuing authority; and the leaf's peer.

        Raises:
            Refusal: with `BAD_CSR`.
            UsageError: the name or `ttl_s` is not allowed.
        """
        public_key = certificates.read_csr(csr_pem)
        issuer = self._issuer_at(now)
        leaf = certificates.make_client_leaf(public_key, client, ttl_s, issuer, now)
        return _pem(leaf, issuer.certificate), peer_from_certificate(leaf)

    def certified(self, certificate_pem: bytes) -> x509.Certificate:
        """Read a certificate that this federation issued, expired or not.

        Raises:
            Refusal: with `NO_CERTIFICATE`, if this federation did not issue it.
        """
        try:
            certificate = x509.load_pem_x509_certificate(certificate_pem)
            for issuer in x509.load_pem_x509_certificates(self.trusted_pem)[1:]:
                if issuer.subject == certificate.issuer and _is_issued(certificate, issuer):
                    return certificate
        except UNREADABLE as error:
            raise Refusal(
                Code.NO_CERTIFICATE,
                "Expected a certificate of this federation, got an unreadable one.",
                detail=repr(error),
            ) from None
        raise Refusal(
            Code.NO_CERTIFICATE, "Expected a certificate of this federation, got a foreign one."
        )

    def issue_server(self, names: Iterable[str], ttl_s: float, now: datetime) -> ServerBundle:
        """Create a key and a certificate for a server with `names`; neither is stored.

        Raises:
            UsageError: `names` is empty, or one is not a valid host name.
        """
        issuer = self._issuer_at(now)
        key = generate_key()
        leaf = certificates.make_server_leaf(key.public_key(), names, ttl_s, issuer, now)
        return self._bundle(key, leaf, _pem(leaf, issuer.certificate, self._root))

    def ensure_server_certificate(self, names: Iterable[str], now: datetime) -> ServerBundle:
        """Return the server's certificate, replaced if necessary.

        It is replaced if it is missing or unreadable, past two thirds of its life, for other names
        or of another root.

        Raises:
            UsageError: `names` is empty, or one is not a valid host name.
        """
        wanted = certificates.normal_names(names)
        bundle = self._stored_bundle()
        due = bundle is None or seconds_until_renewal(bundle.not_before, bundle.not_after, now) <= 0
        if bundle is not None and not due and set(bundle.names) == set(wanted):
            return bundle
        bundle = self.issue_server(wanted, certificates.SERVER_LIFE_S, now)
        self._write(self._directory / "server.pem", bundle.key_pem + bundle.chain_pem)
        return bundle

    def _issuer_at(self, now: datetime) -> Issuer:
        """Return the issuing authority, renewed by the root past two thirds of its life.

        Without the root's key, it is used until it expires.
        """
        current = self._issuer.certificate
        end = current.not_valid_after_utc
        if seconds_until_renewal(current.not_valid_before_utc, end, now) > 0:
            return self._issuer
        try:
            root_key = key_from_pem(read_private(self._directory / "root.key"))
        except FileNotFoundError:
            if now < end:
                _log.warning("issuing authority expires %s: put root.key back to renew it", end)
                return self._issuer
            raise UsageError(
                f"The issuing authority expired {end:%Y-%m-%d} and only the root can renew it: put "
                f"root.key back into {self._directory}"
            ) from None
        self._retire(current)
        self._issuer = _renew_issuer(self._directory, self._root, root_key, now, self._write)
        return self._issuer

    def _retire(self, issuing: x509.Certificate) -> None:
        """Keep the certificate of an issuing authority whose leaves may still be valid."""
        if _pem(issuing) not in self._retired:
            self._retired += _pem(issuing)
            self._write(self._directory / RETIRED, self._retired)

    def _stored_bundle(self) -> ServerBundle | None:
        try:
            pem = read_private(self._directory / "server.pem")
            key = key_from_pem(pem)
            chain = x509.load_pem_x509_certificates(pem)
            if chain[-1] != self._root or chain[0].public_key() != key.public_key():
                return None
            return self._bundle(key, chain[0], _pem(*chain))
        except FileNotFoundError:
            return None
        except (*UNREADABLE, IntegrityError) as error:
            _log.warning("server.pem cannot be read (%s); making a new one", error)
            return None

    def _bundle(
        self, key: ec.EllipticCurvePrivateKey, leaf: x509.Certificate, chain_pem: bytes
    ) -> ServerBundle:
        return ServerBundle(
            key_pem=key_to_pem(key),
            chain_pem=chain_pem,
            root_pem=self.root_pem,
            names=certificates.names_of(leaf),
            not_before=leaf.not_valid_before_utc,
            not_after=leaf.not_valid_after_utc,
        )


def _write_new(directory: Path, federation: str, now: datetime) -> None:
    root_key = generate_key()
    root = certificates.make_root(root_key, federation, now)
    write_private(directory / "root.key", key_to_pem(root_key))
    write_private(directory / "root.pem", _pem(root))
    (directory / "root.pem").chmod(0o644)  # not secret: devices and tools may read it
    _renew_issuer(directory, root, root_key, now)


def _renew_issuer(
    directory: Path,
    root: x509.Certificate,
    root_key: ec.EllipticCurvePrivateKey,
    now: datetime,
    write: Callable[[Path, bytes], None] = write_private,
) -> Issuer:
    key = generate_key()
    certificate = certificates.make_issuing(key, root, root_key, now)
    write(directory / "issuing.pem", key_to_pem(key) + _pem(certificate))
    return Issuer(key, certificate)


def _issuer(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> Issuer:
    if certificate.public_key() != key.public_key():
        raise ValueError("the issuing key is not the one in the issuing certificate")
    return Issuer(key, certificate)


def _is_issued(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _pem(*chain: x509.Certificate) -> bytes:
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in chain)
