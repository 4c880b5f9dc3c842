"""The authority's folder: created atomically, private, renewed in time, never overwritten."""

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509 import verification

from fedloom.protocol.errors import IntegrityError, UsageError
from fedloom.protocol.trust.identity import build_csr, generate_key, key_from_pem
from fedloom.server.pki import authority as pki
from fedloom.server.pki.authority import Authority
from support.logs import ours

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
CSR = build_csr(generate_key())
NAMES = ["localhost", "127.0.0.1"]


@pytest.fixture
def directory(tmp_path):
    """The folder of a new authority."""
    Authority.create(tmp_path / "pki", "demo", NOW)
    return tmp_path / "pki"


def _verify_client(authority, chain_pem, now):
    root = x509.load_pem_x509_certificate(authority.root_pem)
    leaf, *others = x509.load_pem_x509_certificates(chain_pem)
    policy = verification.PolicyBuilder().store(verification.Store([root])).time(now)
    return policy.build_client_verifier().verify(leaf, others)


def test_keys_are_0600_in_a_directory_0700(directory):
    Authority.load(directory).ensure_server_certificate(NAMES, NOW)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes == {
        "root.key": 0o600,
        "root.pem": 0o644,
        "issuing.pem": 0o600,
        "server.pem": 0o600,
    }
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for name in ("root.key", "issuing.pem", "server.pem"):
        assert b"PRIVATE KEY" in (directory / name).read_bytes()
    assert b"PRIVATE KEY" not in (directory / "root.pem").read_bytes()


def test_what_was_created_can_be_loaded(directory):
    """Federation, root and pin are the same, and certificates of both instances verify."""
    authority = Authority.load(directory)
    assert authority.federation == "demo"
    assert authority.root_pem == (directory / "root.pem").read_bytes()
    chain, peer = authority.issue_client(CSR, "dev-1", 3600, NOW)
    assert peer.federation == "demo"
    assert _verify_client(Authority.load(directory), chain, NOW)


def test_an_authority_is_never_overwritten(directory):
    """The second attempt names the folder and changes nothing."""
    before = {path: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(UsageError, match="never overwritten"):
        Authority.create(directory, "demo", NOW)
    assert {path: path.read_bytes() for path in directory.iterdir()} == before
    assert list(directory.parent.iterdir()) == [directory]


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "pki").mkdir()
    Authority.create(tmp_path / "pki", "demo", NOW)
    assert stat.S_IMODE((tmp_path / "pki").stat().st_mode) == 0o700


def test_a_failed_creation_leaves_nothing(tmp_path, monkeypatch):
    """A partial authority would block the next attempt."""

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(pki, "_renew_issuer", fail)
    with pytest.raises(OSError, match="disk full"):
        Authority.create(tmp_path / "pki", "demo", NOW)
    assert list(tmp_path.iterdir()) == []


def test_a_concurrent_creation_keeps_the_winner(tmp_path, monkeypatch):
    """The rename replaces only an empty folder."""
    rename = Path.rename

    def lose(self, target):
        Path(target).mkdir()
        (Path(target) / "root.pem").write_bytes(b"winner")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", lose)
    with pytest.raises(OSError, match="not empty"):
        Authority.create(tmp_path / "pki", "demo", NOW)
    assert (tmp_path / "pki" / "root.pem").read_bytes() == b"winner"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_federation_name_that_is_not_allowed_is_refused(tmp_path):
    with pytest.raises(UsageError, match="federation name"):
        Authority.create(tmp_path / "pki", "My Hospital", NOW)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_authority_names_the_command(tmp_path):
    with pytest.raises(UsageError, match=r"root\.pem is missing.*fedloom server init"):
        Authority.load(tmp_path / "pki")


def test_an_issuing_key_readable_by_others_is_refused(directory):
    (directory / "issuing.pem").chmod(0o644)
    with pytest.raises(UsageError, match=r"issuing\.pem.*chmod 600"):
        Authority.load(directory)


def test_mixed_files_are_an_integrity_error(directory, tmp_path):
    """A wrong restore is found at the start, not with the first client."""
    Authority.create(tmp_path / "other", "demo", NOW)
    (directory / "issuing.pem").write_bytes((tmp_path / "other" / "issuing.pem").read_bytes())
    with pytest.raises(IntegrityError, match="do not belong together"):
        Authority.load(directory)


def test_an_issuing_key_that_fits_no_certificate_is_an_integrity_error(directory):
    pem = (directory / "issuing.pem").read_bytes()
    _, marker, certificate = pem.partition(b"-----BEGIN CERTIFICATE-----")
    stranger = (directory / "root.key").read_bytes()
    (directory / "issuing.pem").write_bytes(stranger + marker + certificate)
    with pytest.raises(IntegrityError, match="do not belong together"):
        Authority.load(directory)


@pytest.mark.parametrize("name", ["root.pem", "issuing.pem"])
def test_damaged_files_are_an_integrity_error(directory, name):
    (directory / name).write_bytes(b"garbage")
    with pytest.raises(IntegrityError):
        Authority.load(directory)


def test_the_server_certificate_is_kept_while_valid(directory):
    """Restarts do not change the key that the server presents."""
    first = Authority.load(directory).ensure_server_certificate(NAMES, NOW)
    again = Authority.load(directory).ensure_server_certificate(reversed(NAMES), NOW + 59 * DAY)
    assert again == first
    assert first.not_after == NOW + 90 * DAY
    assert set(first.names) == set(NAMES)


def test_the_bundle_is_complete(directory):
    """Its chain ends in the root, for devices with only a pin; its key matches the leaf."""
    authority = Authority.load(directory)
    bundle = authority.ensure_server_certificate(NAMES, NOW)
    leaf, issuing, root = x509.load_pem_x509_certificates(bundle.chain_pem)
    leaf.verify_directly_issued_by(issuing)
    issuing.verify_directly_issued_by(root)
    assert bundle.root_pem == authority.root_pem
    assert bundle.chain_pem.endswith(authority.root_pem)
    assert key_from_pem(bundle.key_pem).public_key() == leaf.public_key()
    assert "PRIVATE" not in repr(bundle)


@pytest.mark.parametrize(
    ("names", "now"),
    [
        (NAMES, NOW + 61 * DAY),
        (NAMES, NOW + 400 * DAY),
        (["localhost"], NOW),
        ([*NAMES, "fl.example.org"], NOW),
    ],
)
def test_the_server_certificate_is_renewed_when_due_or_renamed(directory, names, now):
    """Past two thirds of its life, or for other names, a new one is stored."""
    authority = Authority.load(directory)
    first = authority.ensure_server_certificate(NAMES, NOW)
    second = authority.ensure_server_certificate(names, now)
    assert second.chain_pem != first.chain_pem
    assert second.key_pem != first.key_pem
    assert set(second.names) == set(names)
    assert second.not_after == now + 90 * DAY
    assert Authority.load(directory).ensure_server_certificate(names, now) == second


@pytest.mark.parametrize("damage", ["garbage", "foreign root", "foreign key"])
def test_a_damaged_server_certificate_is_replaced(directory, tmp_path, damage):
    authority = Authority.load(directory)
    good = authority.ensure_server_certificate(NAMES, NOW)
    other = Authority.create(tmp_path / "other", "demo", NOW).issue_server(NAMES, 3600, NOW)
    (directory / "server.pem").write_bytes(
        {
            "garbage": b"garbage",
            "foreign root": other.key_pem + other.chain_pem,
            "foreign key": other.key_pem + good.chain_pem,
        }[damage]
    )
    bundle = authority.ensure_server_certificate(NAMES, NOW)
    assert bundle.chain_pem.endswith(authority.root_pem)
    assert Authority.load(directory).ensure_server_certificate(NAMES, NOW) == bundle


def test_earlier_clients_stay_valid_after_a_renewal(directory):
    """Past two thirds of its life, the issuing authority is renewed; both chains verify."""
    authority = Authority.load(directory)
    late = NOW + 500 * DAY
    old_chain, _ = authority.issue_client(CSR, "dev-1", 800 * 86400, NOW)
    new_chain, peer = authority.issue_client(CSR, "dev-2", 400 * 86400, late)
    assert old_chain.count(b"BEGIN") == new_chain.count(b"BEGIN") == 2
    assert (
        x509.load_pem_x509_certificates(old_chain)[1]
        != (x509.load_pem_x509_certificates(new_chain)[1])
    )
    assert peer.not_after == late + 400 * DAY
    assert _verify_client(authority, old_chain, late)
    assert _verify_client(authority, new_chain, late)
    for trusted in (authority.trusted_pem, Authority.load(directory).trusted_pem):
        known = x509.load_pem_x509_certificates(trusted)
        assert x509.load_pem_x509_certificates(old_chain)[1] in known
        assert x509.load_pem_x509_certificates(new_chain)[1] in known
    kept = Authority.load(directory).issue_client(CSR, "dev-3", 3600, late)[0]
    assert (
        x509.load_pem_x509_certificates(kept)[1] == (x509.load_pem_x509_certificates(new_chain)[1])
    )


def test_an_offline_root_key_is_required_only_at_expiry(directory, caplog):
    """Past two thirds of the issuing authority's life the log warns; after expiry it fails."""
    (directory / "root.key").unlink()
    authority = Authority.load(directory)
    authority.issue_client(CSR, "dev-1", 3600, NOW)
    assert ours(caplog) == []
    _, peer = authority.issue_client(CSR, "dev-1", 3600, NOW + 600 * DAY)
    assert peer.client == "dev-1"
    assert "put root.key back" in caplog.text
    with pytest.raises(UsageError, match=r"put root\.key back"):
        authority.issue_client(CSR, "dev-1", 3600, NOW + 731 * DAY)


def test_nothing_outlives_the_root(directory):
    """An issuing authority made in the root's last year expires with the root."""
    authority = Authority.load(directory)
    root = x509.load_pem_x509_certificate(authority.root_pem)
    chain, peer = authority.issue_client(CSR, "dev-1", 10**9, NOW + 3500 * DAY)
    assert peer.not_after == root.not_valid_after_utc
    assert _verify_client(authority, chain, NOW + 3501 * DAY)
