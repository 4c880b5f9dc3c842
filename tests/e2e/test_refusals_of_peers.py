"""Unauthorised peers and invalid greetings.

Meanwhile the round of alice and bob stays open, and it closes with the expected bits.
"""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedloom.protocol.errors import Code
from fedloom.protocol.transport import methods
from fedloom.protocol.transport.status import grpc_status
from fedloom.protocol.trust import tokens
from fedloom.protocol.trust.identity import build_csr, generate_key, key_to_pem
from fedloom.protocol.trust.signing import NONCE_BYTES
from fedloom.protocol.v1 import enrolment_pb2, fleet_pb2
from fedloom.protocol.version import PROTOCOL_VERSIONS
from fedloom.server import device_ports
from fedloom.server.fleet import authenticate
from fedloom.server.fleet.sessions import MAX_CALLS, Hold
from fedloom.server.pki import certificates
from fedloom.server.pki.authority import Authority
from support.agents import until
from support.arena import GOOD, assert_recorded, assert_refused
from support.federation import Identity, Upload, ask, converse, download, upload
from support.forgery import honest

HELLO = fleet_pb2.Hello(
    protocol_versions=PROTOCOL_VERSIONS, client="mallory", nonce=bytes(NONCE_BYTES)
)


@asynccontextmanager
async def others_go_on(arena):
    """A round of alice and bob is open during the test, and closes with the expected bits."""
    async with arena.open_round() as opened:
        yield opened
        assert await opened.finish() == arena.digest


def greeting(**fields):
    hello = fleet_pb2.Hello()
    hello.CopyFrom(HELLO)
    for name, value in fields.items():
        setattr(hello, name, value)
    return fleet_pb2.ClientMessage(hello=hello).SerializeToString()


class Later(datetime):
    """The server's clock, ten minutes ahead."""

    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + timedelta(minutes=10)


async def every_method(channel, client):
    """The answer of each fleet method to a caller."""
    header = fleet_pb2.UpdateHeader(client=client)
    request = enrolment_pb2.RenewRequest(csr_pem=build_csr(generate_key()))
    return {
        "Attend": await converse(channel, methods.ATTEND, [greeting(client=client)]),
        "Upload": await upload(channel, header, []),
        "Download": await download(channel, fleet_pb2.DownloadRequest().SerializeToString()),
        "Renew": await ask(channel, methods.RENEW, request.SerializeToString()),
    }


# ---- the handshake ------------------------------------------------------------------------------


def nobody(arena, tmp_path):
    return None


def foreigner(arena, tmp_path):
    theirs = Authority.create(tmp_path / "theirs", "fedloom", datetime.now(UTC))
    identity, _ = arena.federation.forge("alice", authority=theirs)
    return identity


def lapsed(arena, tmp_path):
    past = datetime.now(UTC) - timedelta(days=3)
    return arena.federation.enrol("lapsed", now=past, ttl_s=24 * 3600.0)


def server_itself(arena, tmp_path):
    bundle = arena.federation.authority.issue_server(["alice"], 3600.0, datetime.now(UTC))
    return Identity("alice", bundle.key_pem, bundle.chain_pem)


@pytest.mark.parametrize("who", [nobody, foreigner, lapsed, server_itself])
def test_handshake_refuses_before_any_method_is_reached(runner, arena, tmp_path, who):
    """Without a certificate, or with a foreign, an expired or a server's one."""

    async def scene():
        async with others_go_on(arena):
            identity = who(arena, tmp_path)
            before = len(arena.federation.refusals())
            answers = await every_method(arena.federation.channel(identity), "alice")
            assert {a.status for a in answers.values()} == {grpc.StatusCode.UNAVAILABLE}
            assert {a.code for a in answers.values()} == {None}
            assert len(arena.federation.refusals()) == before

    runner.run(scene())


def test_certificate_that_names_no_client_is_refused(runner, arena, caplog):
    """A leaf of our authority without a client's URI passes only the handshake."""

    async def scene():
        async with others_go_on(arena):
            issuer = arena.federation.authority._issuer_at(datetime.now(UTC))
            key = generate_key()
            builder = certificates._leaf_builder(
                key.public_key(), x509.Name([]), 3600.0, issuer, datetime.now(UTC)
            )
            names = [x509.UniformResourceIdentifier("spiffe://fedloom/operator/root")]
            leaf = certificates._with_purpose(builder, names, ExtendedKeyUsageOID.CLIENT_AUTH).sign(
                issuer.key, hashes.SHA256()
            )
            pem = b"".join(
                c.public_bytes(serialization.Encoding.PEM) for c in (leaf, issuer.certificate)
            )
            channel = arena.federation.channel(Identity("operator", key_to_pem(key), pem))
            for answer in (await every_method(channel, "alice")).values():
                assert answer.code is Code.NO_CERTIFICATE
                assert answer.status is grpc_status(Code.NO_CERTIFICATE)
            assert_recorded(arena, caplog, Code.NO_CERTIFICATE, "")

    runner.run(scene())


def test_certificate_missing_in_the_ledger_is_unknown(runner, arena, caplog):
    """A certificate of our authority is not sufficient."""

    async def scene():
        async with others_go_on(arena):
            identity, _ = arena.federation.forge("alice")
            for answer in (
                await every_method(arena.federation.channel(identity), "alice")
            ).values():
                assert answer.code is Code.UNKNOWN_CLIENT
                assert answer.status is grpc_status(Code.UNKNOWN_CLIENT)
            assert_recorded(arena, caplog, Code.UNKNOWN_CLIENT, "alice")

    runner.run(scene())


@pytest.mark.long
def test_certificate_that_expires_on_a_live_connection(runner, arena, caplog, monkeypatch):
    """Its idle stream is cut and later calls are refused as expired."""

    async def scene():
        async with others_go_on(arena):
            short = arena.federation.enrol("short", ttl_s=300.0)
            stream = await arena.federation.attend(short)
            channel = stream.channel
            for module in (device_ports, authenticate):
                monkeypatch.setattr(module, "datetime", Later)
            ended = await stream.ending()
            assert_refused(ended, Code.EXPIRED)
            assert_recorded(arena, caplog, Code.EXPIRED, "short")
            for answer in (await every_method(channel, "short")).values():
                assert answer.code is Code.EXPIRED
            assert_recorded(arena, caplog, Code.EXPIRED, "short")

    runner.run(scene())


@pytest.mark.long
def test_revocation_cuts_a_live_stream_within_two_seconds(runner, arena, caplog):
    """The stream ends with `revoked`, and so does every later call."""

    async def scene():
        async with others_go_on(arena):
            eve = arena.federation.enrol("eve")
            stream = await arena.federation.attend(eve)
            assert arena.federation.ledger.revoke("eve")
            ended = await stream.ending()
            assert device_ports.SWEEP_S < 2.0
            assert_refused(ended, Code.REVOKED)
            assert_recorded(arena, caplog, Code.REVOKED, "eve")
            assert arena.federation.contexts.fleet.get("eve") is None
            for answer in (await every_method(stream.channel, "eve")).values():
                assert answer.code is Code.REVOKED
            anew = await every_method(arena.federation.channel(eve), "eve")
            assert {a.code for a in anew.values()} == {Code.REVOKED}
            assert_recorded(arena, caplog, Code.REVOKED, "eve")

    runner.run(scene())


@pytest.mark.long
def test_revocation_cuts_an_upload_in_progress(runner, arena, caplog):
    """The update does not count."""

    async def scene():
        dave = arena.federation.enrol("dave")
        stream = await arena.federation.attend(dave)
        cohort = {"goal": 4, "quorum": 1, "patience_s": 3600.0, "deadline_s": 3600.0}
        async with arena.open_round(cohort=cohort) as opened:
            forged = honest("dave", await stream.offer_of(opened.run))
            body = forged.body()
            call = Upload(arena.federation.channel(dave))
            await call.write(forged.header.SerializeToString())
            assert (await call.reply()).WhichOneof("kind") == "proceed"
            await call.write(body[:100])
            assert arena.federation.ledger.revoke("dave")
            answer = await call.ending()
            assert_refused(answer, Code.REVOKED)
            assert_recorded(arena, caplog, Code.REVOKED, "dave")
            again = await upload(stream.channel, forged.header, [body])
            assert again.code is Code.REVOKED
            assert arena.federation.ledger.find_update(opened.run, 1, "dave") is None
            assert await opened.finish() == arena.digest
            accepted = arena.federation.ledger.accepted(opened.run, 1)
            assert sorted(row.client for row in accepted) == sorted(GOOD)

    runner.run(scene())


def test_quarantine_refuses_uploads_in_progress_and_new_ones(runner, arena, caplog):
    """The round of the others continues; after its release the client can upload."""

    async def scene():
        erin = arena.federation.enrol("erin")
        stream = await arena.federation.attend(erin)
        fleet = arena.federation.contexts.fleet
        cohort = {"goal": 4, "quorum": 1, "patience_s": 3600.0, "deadline_s": 3600.0}
        async with arena.open_round(cohort=cohort) as opened:
            forged = honest("erin", await stream.offer_of(opened.run))
            body = forged.body()
            call = Upload(arena.federation.channel(erin))
            await call.write(forged.header.SerializeToString())
            assert (await call.reply()).WhichOneof("kind") == "proceed"
            fleet.hold("erin", Hold.QUARANTINE)
            await call.write(body)
            await call.half_close()
            answer = await call.ending()
            assert_refused(answer, Code.QUARANTINED)
            assert_recorded(arena, caplog, Code.QUARANTINED, "erin", opened.run)
            again = await upload(stream.channel, forged.header, [body])
            assert again.code is Code.QUARANTINED
            assert await opened.finish() == arena.digest
        fleet.release("erin")
        assert "erin" in fleet.available()
        await stream.stop()

    runner.run(scene())


def test_revoked_client_may_enrol_again_with_a_new_token(runner, arena):
    """Its old certificate stays revoked."""

    async def scene():
        federation = arena.federation
        async with others_go_on(arena):
            old = federation.enrol("returning")
            federation.ledger.revoke("returning")
            new = federation.enrol("returning")
            stream = await federation.attend(new)
            await stream.stop()
            answers = await every_method(federation.channel(old), "returning")
            assert {a.code for a in answers.values()} == {Code.REVOKED}

    runner.run(scene())


# ---- greetings ----------------------------------------------------------------------------------

LABELS = {f"{number}": "x" * 100 for number in range(10_000)}
REPLY = fleet_pb2.ClientMessage(offer_reply=fleet_pb2.OfferReply(accepted=True))
GREETINGS = {
    "nothing": ([], Code.MALFORMED),
    "garbage": ([b"\xff\xff\xff"], Code.MALFORMED),
    "empty message": ([b""], Code.MALFORMED),
    "reply before hello": ([REPLY.SerializeToString()], Code.MALFORMED),
    "another's name": ([greeting(client="alice")], Code.WRONG_IDENTITY),
    "no name": ([greeting(client="")], Code.WRONG_IDENTITY),
    "a long name": ([greeting(client="\U0001f9f6" * 16_000)], Code.WRONG_IDENTITY),
    "a megabyte of name": ([greeting(client="\U0001f9f6" * 250_000)], Code.TOO_LARGE),
    "future version": (
        [
            fleet_pb2.ClientMessage(
                hello=fleet_pb2.Hello(protocol_versions=[4, 5], client="peter")
            ).SerializeToString()
        ],
        Code.VERSION_UNSUPPORTED,
    ),
    "past version": (
        [
            fleet_pb2.ClientMessage(
                hello=fleet_pb2.Hello(protocol_versions=[1], client="peter")
            ).SerializeToString()
        ],
        Code.VERSION_UNSUPPORTED,
    ),
    "no version": (
        [fleet_pb2.ClientMessage(hello=fleet_pb2.Hello(client="peter")).SerializeToString()],
        Code.VERSION_UNSUPPORTED,
    ),
    "half a million versions": (
        [
            fleet_pb2.ClientMessage(
                hello=fleet_pb2.Hello(protocol_versions=[7] * 500_000, client="peter")
            ).SerializeToString()
        ],
        Code.TOO_LARGE,
    ),
    "hello without a nonce": ([greeting(client="peter", nonce=b"")], Code.MALFORMED),
    "long nonce": ([greeting(client="peter", nonce=bytes(33))], Code.MALFORMED),
    "hello twice": ([greeting(client="peter")] * 2, Code.MALFORMED),
    "garbage after hello": ([greeting(client="peter"), b"\xff\xff\xff"], Code.MALFORMED),
    "nothing after hello": ([greeting(client="peter"), b""], Code.MALFORMED),
}


@pytest.mark.parametrize("name", GREETINGS)
def test_bad_greeting_ends_the_stream_with_its_code(runner, arena, caplog, name):
    """The refusal is recorded."""
    messages, code = GREETINGS[name]

    async def scene():
        async with others_go_on(arena):
            peter = arena.federation.channel(arena.federation.enrol("peter"))
            answer = await converse(peter, methods.ATTEND, messages)
            assert_refused(answer, code)
            assert_recorded(arena, caplog, code, "peter")
            assert arena.federation.contexts.fleet.get("peter") is None

    runner.run(scene())


def test_second_stream_of_a_client_replaces_the_first(runner, arena, caplog):
    """The first gets the reason, so that two devices with one identity are noticed."""

    async def scene():
        async with others_go_on(arena):
            twin = arena.federation.enrol("twin")
            first = await arena.federation.attend(twin)
            second = await arena.federation.attend(twin)
            ended = await first.ending()
            assert_refused(ended, Code.BUSY)
            assert_recorded(arena, caplog, Code.BUSY, "twin")
            assert arena.federation.contexts.fleet.get("twin") is not None
            await second.stop()

    runner.run(scene())


def test_client_with_too_many_calls_at_once_has_to_wait(runner, arena, caplog):
    """Each call needs memory; other clients are not affected."""

    async def scene():
        async with others_go_on(arena):
            channel = arena.federation.channel(arena.federation.enrol("greedy"))
            held = [Upload(channel) for _ in range(MAX_CALLS)]
            await until(lambda: len(arena.federation.contexts.fleet.calls()) == MAX_CALLS + 3)
            answers = await every_method(channel, "greedy")
            assert {a.code for a in answers.values()} == {Code.BUSY}
            assert_recorded(arena, caplog, Code.BUSY, "greedy")
            for call in held:
                call.cut()

    runner.run(scene())


# ---- downloads and renewals ---------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("digest", "code"),
    [
        ("", Code.UNKNOWN_MODEL),
        ("0" * 64, Code.UNKNOWN_MODEL),
        ("../../pki/root.key", Code.UNKNOWN_MODEL),
        ("\U0001f9f6" * 100_000, Code.UNKNOWN_MODEL),
    ],
)
def test_only_models_of_the_ledger_can_be_downloaded(runner, arena, caplog, digest, code):
    """For any path or digest."""

    async def scene():
        async with others_go_on(arena):
            request = fleet_pb2.DownloadRequest(digest=digest).SerializeToString()
            answer = await download(arena.channels["mallory"], request)
            assert_refused(answer, code)
            assert_recorded(arena, caplog, code, "mallory")

    runner.run(scene())


def test_download_past_the_end_is_empty(runner, arena):
    """An offset at or past the end gives no bytes and no error."""

    async def scene():
        async with others_go_on(arena):
            size = arena.federation.contexts.models.path(arena.model).stat().st_size
            for offset, left in ((size - 3, 3), (size, 0), (size + 1, 0), (2**64 - 1, 0)):
                request = fleet_pb2.DownloadRequest(digest=arena.model, offset=offset)
                answer = await download(arena.channels["alice"], request.SerializeToString())
                assert answer.status is grpc.StatusCode.OK
                assert len(b"".join(answer.replies)) == left

    runner.run(scene())


def test_garbage_in_unary_requests_is_refused_by_type(runner, arena, caplog):
    """Download and Renew refuse bytes that are no protobuf as malformed."""

    async def scene():
        async with others_go_on(arena):
            mallory = arena.channels["mallory"]
            for answer in (
                await download(mallory, b"\xff\xff\xff"),
                await ask(mallory, methods.RENEW, b"\xff\xff\xff"),
            ):
                assert_refused(answer, Code.MALFORMED)
                assert_recorded(arena, caplog, Code.MALFORMED, "mallory")

    runner.run(scene())


# ---- enrolment ----------------------------------------------------------------------------------


def signed_csr(key, *names):
    """A certificate request over a key of any kind."""
    attributes = [x509.NameAttribute(x509.NameOID.COMMON_NAME, name) for name in names]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(attributes))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def damaged_csr():
    """A request whose signature is invalid."""
    der = bytearray(
        x509.load_pem_x509_csr(build_csr(generate_key())).public_bytes(serialization.Encoding.DER)
    )
    der[-1] ^= 1
    return x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)


BAD_CSRS = {
    "nothing": lambda: b"",
    "garbage": lambda: b"\xff" * 100,
    "a key": lambda: key_to_pem(generate_key()),
    "another curve": lambda: signed_csr(ec.generate_private_key(ec.SECP384R1())),
    "rsa": lambda: signed_csr(rsa.generate_private_key(65537, 2048)),
    "wrong signature": damaged_csr,
    "too long": lambda: build_csr(generate_key()) + b"\n" * 20_000,
}


@pytest.mark.long
@pytest.mark.parametrize("name", BAD_CSRS)
def test_bad_certificate_request_is_refused_and_leaves_the_token_unused(
    runner, arena, caplog, name
):
    """At enrolment and at renewal."""
    csr = BAD_CSRS[name]()

    async def scene():
        async with others_go_on(arena):
            token = arena.federation.add_token("clumsy")
            answer = await arena.federation.ask_enrolment(token=token.text(), csr_pem=csr)
            assert_refused(answer, Code.BAD_CSR)
            assert_recorded(arena, caplog, Code.BAD_CSR, "clumsy")
            request = enrolment_pb2.RenewRequest(csr_pem=csr).SerializeToString()
            answer = await ask(arena.channels["mallory"], methods.RENEW, request)
            assert answer.code is Code.BAD_CSR
            assert_recorded(arena, caplog, Code.BAD_CSR, "mallory")
            again = await arena.federation.ask_enrolment(token=token.text())
            assert again.status is grpc.StatusCode.OK

    runner.run(scene())


def used(federation):
    federation.enrol("spender")
    token = federation.add_token("spender")
    federation.ledger.enrol(token.id, "00" * 20, 0.0)
    return token


def swapped(federation, **fields):
    """A valid token with one part exchanged."""
    token = federation.add_token("swapper")
    whole = {"id": token.id, "secret": token.secret, "pin": token.pin} | fields
    return tokens.Token(**whole)


BAD_TOKENS = {
    "used": (lambda f: used(f).text(), "spender"),
    "expired": (lambda f: f.add_token("dawdler", life_s=-1.0).text(), "dawdler"),
    "wrong pin": (lambda f: swapped(f, pin=bytes(32)).text(), "swapper"),
    "wrong secret": (lambda f: swapped(f, secret=bytes(32)).text(), ""),
    "unknown id": (lambda f: swapped(f, id="00000000").text(), ""),
    "of another server": (lambda f: tokens.make_token(bytes(32)).text(), ""),
    "garbage": (lambda f: "let me in", ""),
    "nothing": (lambda f: "", ""),
    "long garbage": (lambda f: "x" * 50_000, ""),
    "cut short": (lambda f: f.add_token("cutter").text()[:-1], ""),
    "in another case": (lambda f: f.add_token("shouter").text().upper(), ""),
}


@pytest.mark.long
@pytest.mark.parametrize("name", BAD_TOKENS)
def test_bad_token_is_refused(runner, arena, caplog, name):
    """Used, expired, altered and invented tokens get the same code."""
    make, client = BAD_TOKENS[name]

    async def scene():
        async with others_go_on(arena):
            text = make(arena.federation)
            answer = await arena.federation.ask_enrolment(token=text)
            assert_refused(answer, Code.BAD_TOKEN)
            assert_recorded(arena, caplog, Code.BAD_TOKEN, client)
            assert not answer.replies
            secret = text.split(".")[2] if text.count(".") == 3 else text[:40] or "nothing"
            assert secret not in caplog.text
            assert secret not in answer.message

    runner.run(scene())


def test_a_token_used_concurrently_enrols_one_device(runner, arena):
    """Twenty devices with the same token: one certificate, nineteen refusals."""

    async def scene():
        token = arena.federation.add_token("popular").text()
        asking = [arena.federation.ask_enrolment(token=token) for _ in range(20)]
        answers = await asyncio.gather(*asking)
        codes = [answer.code for answer in answers]
        assert (codes.count(None), codes.count(Code.BAD_TOKEN)) == (1, 19)

    runner.run(scene())


def test_enrolment_needs_a_common_version_and_protobuf(runner, arena, caplog):
    """Otherwise it is refused, and the token stays unused."""

    async def scene():
        federation = arena.federation
        async with others_go_on(arena):
            token = federation.add_token("newcomer").text()
            for versions in ([], [1], [4, 5, 2**32 - 1]):
                answer = await federation.ask_enrolment(token=token, protocol_versions=versions)
                assert answer.code is Code.VERSION_UNSUPPORTED
                assert answer.status is grpc_status(Code.VERSION_UNSUPPORTED)
            answer = await ask(federation.door(), methods.ENROL, b"\xff\xff\xff")
            assert_refused(answer, Code.MALFORMED)
            assert_recorded(arena, caplog, Code.MALFORMED, "")
            giant = await federation.ask_enrolment(token="x" * 100_000)
            assert giant.status is grpc.StatusCode.RESOURCE_EXHAUSTED  # gRPC's own, unparsed
            both = await federation.ask_enrolment(token=token, protocol_versions=[1, 2, 3])
            assert both.status is grpc.StatusCode.OK

    runner.run(scene())


def test_names_in_a_certificate_request_are_ignored(runner, arena):
    """The client has the name of its token."""

    async def scene():
        token = arena.federation.add_token("modest").text()
        csr = signed_csr(generate_key(), "alice")
        answer = await arena.federation.ask_enrolment(token=token, csr_pem=csr)
        issued = enrolment_pb2.IssuedCertificate.FromString(answer.replies[0])
        assert issued.client == "modest"
        leaf = x509.load_pem_x509_certificate(issued.chain_pem)
        assert "alice" not in leaf.subject.rfc4514_string()

    runner.run(scene())


def test_unauthenticated_peers_cannot_fill_the_ledger(runner, arena):
    """Their refusals are one row with their number."""

    async def counted():
        rows = await arena.federation.stored_refusals()
        rows = [row for row in rows if row.code == Code.BAD_TOKEN]
        return len(rows), sum(row.times for row in rows)

    async def scene():
        await arena.federation.ask_enrolment(token="guess")
        rows, times = await counted()
        for number in range(8):
            await arena.federation.ask_enrolment(token=f"guess {number}")
        assert await counted() == (rows, times + 8)

    runner.run(scene())
