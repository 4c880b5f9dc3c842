"""The doctor finds each real fault of a device and says how to fix it."""

import asyncio
import json
import os
import re
import shutil
import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.client.config import load
from fedloom.client.doctor import examine, identity, network
from fedloom.client.identity.enrol import enrol
from fedloom.protocol.errors import Code
from fedloom.protocol.transport import methods
from fedloom.protocol.trust.identity import generate_key, key_to_pem
from support.federation import ask

CODE = """
import numpy as np
from fedloom.client import Client

class Good(Client):
    def train(self, params, task):
        return {"w": params["w"] + 1}, 5, {"loss": 0.5}
    def initial(self):
        return {"w": np.zeros(2)}

class Raises(Good):
    def train(self, params, task):
        return params["weight"], 5, {}

class Modelless(Good):
    initial = Client.initial
"""


@pytest.fixture(scope="module")
def pristine(runner, federation, tmp_path_factory):
    """Folder of an enrolled device, which tests do not change."""
    folder = tmp_path_factory.mktemp("device")
    token = federation.add_token("doctored").text()
    port = federation.server.enrolment_port
    runner.run(enrol(f"127.0.0.1:{port}", token, folder / "client.toml"))
    return folder


@pytest.fixture
def device(pristine, tmp_path):
    """A copy of the device, which a test may damage."""
    shutil.copytree(pristine, tmp_path / "device")
    return tmp_path / "device"


@pytest.fixture
def look(runner, device):
    """Run the doctor while the server of this process runs; returns results by check."""

    def looked(config=None, **more):
        async def main():
            return await asyncio.to_thread(
                lambda: list(examine(config or device / "client.toml", **more))
            )

        found = runner.run(main())
        assert len({each.check for each in found}) == len(found)
        assert all(each.mend for each in found if each.level in {"warn", "fail"})
        return {each.check: each for each in found}

    return looked


def setting(device, old, new):
    path = device / "client.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def levels(found, level):
    return {name for name, each in found.items() if each.level == level}


def test_a_healthy_device_passes_every_check(look):
    """Only the code is skipped: none was given."""
    found = look()
    assert levels(found, "ok") | levels(found, "skip") == found.keys()
    assert levels(found, "skip") == {"code"}
    wanted = (
        "settings disk memory policy conditions identity name route tls server clock certificate"
    )
    assert {*wanted.split(), "enrolment", "bandwidth", "versions"} <= found.keys()
    assert "Mbit/s" in found["bandwidth"].said
    assert "doctored" in found["identity"].said


def test_the_doctor_changes_no_file(look, device):
    before = {p: p.stat().st_mtime_ns for p in device.rglob("*") if p.is_file()}
    look()
    assert {p: p.stat().st_mtime_ns for p in device.rglob("*") if p.is_file()} == before


def test_wrong_settings_are_named(look, device):
    """Checks that need them are skipped."""
    setting(device, "# reconnect_s", "reconect_s")
    found = look()
    assert "reconect_s" in found["settings"].said
    assert levels(found, "fail") == {"settings"}
    assert "route" not in found


def test_without_settings_the_doctor_shows_how_to_enrol(look, tmp_path):
    assert "fedloom client enroll" in look(tmp_path / "none.toml")["settings"].said


def test_an_unresolved_name_is_distinguished_from_a_failed_route(look, device):
    """Later steps are skipped."""
    setting(device, "127.0.0.1:", "no-such-host.invalid:")
    found = look()
    assert levels(found, "fail") == {"name"}
    assert "no-such-host.invalid" in found["name"].said
    assert "DNS" in found["name"].mend
    assert "tls" not in found


def test_a_server_that_is_down_is_reported(look, device):
    """The device itself is checked anyway."""
    with socket.socket() as taken:  # bound and not listening, so that the port stays free
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        fleet = load(device / "client.toml").server
        setting(device, fleet, f"127.0.0.1:{port}")
        found = look()
    assert levels(found, "fail") == {"route"}
    assert "nothing listens" in found["route"].said
    assert found["certificate"].level == "ok"
    assert found["clock"].level == found["bandwidth"].level == "skip"


def test_an_unreachable_proxy_is_named(look, monkeypatch):
    """The direct route works, but the agent would use the proxy."""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    found = look()
    assert found["route"].level == "ok"
    assert found["proxy"].level == "warn"
    assert "no_proxy=" in found["proxy"].mend
    assert found["server"].level == "fail"
    assert "https_proxy" in found["server"].said


def test_a_listener_without_tls_is_not_the_server(look, device):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fleet = load(device / "client.toml").server
        setting(device, fleet, f"127.0.0.1:{listener.getsockname()[1]}")
        network.CONNECT_S, before = 0.3, network.CONNECT_S
        try:
            found = look()
        finally:
            network.CONNECT_S = before
    assert levels(found, "fail") == {"tls"}


def test_a_server_of_another_federation_is_detected(look, device, federation):
    """By this device's root certificate."""
    root = device / "client-state" / "root.pem"
    root.write_bytes(_other_root(device))
    found = look()
    assert "root certificate" in found["tls"].said
    assert levels(found, "fail") == {"tls"}


def _other_root(folder):
    from fedloom.server.pki.authority import Authority

    return Authority.create(folder / "pki", "other", datetime.now(UTC)).root_pem


def test_a_name_missing_from_the_servers_certificate_is_reported(look, device):
    """With the names that it has."""
    setting(device, "127.0.0.1:", "127.1:")
    found = look()
    assert levels(found, "fail") == {"tls"}
    assert "localhost" in found["tls"].said


def test_the_enrolment_port_is_distinguished_from_the_fleets(look, device, federation):
    """Both present the server's certificate; only one accepts clients."""
    fleet, enrolment = federation.server.fleet_port, federation.server.enrolment_port
    setting(device, f'server = "127.0.0.1:{fleet}"', f'server = "127.0.0.1:{enrolment}"')
    found = look()
    assert levels(found, "fail") == {"server"}
    assert "enrolment port" in found["server"].said


def test_the_rate_is_the_median_of_the_last_transfers():
    """A single very fast or slow transfer does not change it."""
    took = [1.0] * 4 + [0.008, 0.008, 0.0, 9.0] + [0.008] * 12
    rate = network._rate(lambda size: took.pop(0) + 1e-9, 0.001)
    assert 1000 < rate < 2400


def test_a_wrong_clock_is_measured_against_the_servers(look, monkeypatch):
    """The certificate is judged by the server's time."""
    monkeypatch.setattr(network, "here_s", lambda: time.time() - 3600)
    found = look()
    assert found["clock"].level == "warn"
    assert re.match(r"1:00:0\d behind|0:59:5\d behind", found["clock"].said)


def test_the_level_of_a_certificate_depends_on_its_validity(look, device):
    config = load(device / "client.toml")
    held, _ = identity.held(config)
    life = held.end - held.begin
    at = {
        "fail": held.begin - timedelta(hours=1),
        "ok": held.begin + life / 2,
        "warn": held.end - life / 10,
    }
    for level, now in at.items():
        assert identity.certificate(held, config, now).level == level
    late = identity.certificate(held, config, held.end + timedelta(hours=1))
    assert (late.level, config.enrolment in late.mend) == ("warn", True)


def test_a_revoked_client_is_reported(look, federation, runner, tmp_path):
    folder = tmp_path / "revoked"
    token = federation.add_token("revoked").text()
    port = federation.server.enrolment_port
    runner.run(enrol(f"127.0.0.1:{port}", token, folder / "client.toml"))
    federation.ledger.revoke("revoked")
    found = look(folder / "client.toml")
    assert levels(found, "fail") == {"server"}
    assert "revoked" in found["server"].said


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        (lambda p: p.unlink(), "identity.pem is missing"),
        (lambda p: p.chmod(0o644), "Expected mode 600"),
        (lambda p: p.write_bytes(b"garbage"), "got 7 bytes of something else"),
        (
            lambda p: p.write_bytes(
                key_to_pem(generate_key()) + p.read_bytes().split(b"-----END PRIVATE KEY-----\n")[1]
            ),
            "do not match",
        ),
    ],
)
def test_a_damaged_identity_is_found(look, device, breaks, says):
    """Missing, readable by others, not PEM, or a key and certificate that do not match."""
    path = device / "client-state" / "identity.pem"
    breaks(path)
    if path.exists() and "mode" not in says:
        path.chmod(0o600)
    found = look()
    assert levels(found, "fail") == {"identity"}
    assert says in found["identity"].said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_found(look, device, monkeypatch):
    """By writing a file."""
    real = Path.write_bytes

    def onto_full(self, data):
        return real(Path("/dev/full") if ".doctor-" in self.name else self, data)

    monkeypatch.setattr(Path, "write_bytes", onto_full)
    found = look()
    assert "No space left" in found["disk"].said
    assert levels(found, "fail") == {"disk"}


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_of_another_user_is_found(look, device):
    """As when another user than the enrolled one runs the client."""
    state = device / "client-state"
    state.chmod(0o500)
    try:
        assert look()["disk"].level == "fail"
    finally:
        state.chmod(0o700)


def test_budgets_too_small_for_the_last_model_are_reported(look, device):
    """Before such an offer is declined."""
    with (device / "client-state" / "models" / f"{'0' * 64}.safetensors").open("wb") as file:
        file.truncate(50_000_000)
    setting(device, "# memory_mb", "memory_mb = 100 #")
    setting(device, "# disk_mb", "disk_mb = 60 #")
    found = look()
    assert levels(found, "warn") == {"memory", "disk"}
    assert "50.0 MB" in found["disk"].said


def test_conditions_that_do_not_hold_now_are_reported(look, device):
    """As a warning: it may be intended."""
    day = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[
        (datetime.now().astimezone().weekday() + 3) % 7
    ]
    setting(device, "# windows", f'windows = ["{day} 00:00-01:00"] #')
    found = look()
    assert levels(found, "warn") == {"conditions"}
    assert "would be declined" in found["conditions"].said


@pytest.mark.long
def test_an_invalid_policy_is_reported(look, device):
    (device / "policy.toml").write_text("[runs]\nalow = []\n")
    found = look()
    assert levels(found, "fail") == {"policy"}
    assert "alow" in found["policy"].said


def test_a_slow_link_is_reported_by_a_rounds_transfer_time(look, device):
    """Also if a setting limits the rate."""
    setting(device, "# download_mbit_s", "download_mbit_s = 0.1 #")
    found = look()
    assert levels(found, "warn") == {"bandwidth"}


@pytest.mark.parametrize(
    ("name", "level", "says"),
    [
        ("Good", "ok", "loss 0.5"),
        ("Raises", "fail", "KeyError"),
        ("Nobody", "fail", "has no 'Nobody'"),
        ("Modelless", "skip", "no model"),
    ],
)
def test_the_code_trains_one_step(tmp_path, name, level, says):
    """An exception is reported with its file and line."""
    (tmp_path / "mine.py").write_text(CODE)
    arguments = ["--config", str(tmp_path / "none.toml"), "--code", f"{tmp_path}/mine.py:{name}"]
    done = CliRunner().invoke(main, ["client", "doctor", "--json", *arguments])
    found = {each["check"]: each for each in json.loads(done.output)["findings"]}
    assert done.exit_code == 1  # no settings exist
    assert found["code"]["level"] == level
    assert says in found["code"]["said"]
    if name == "Raises":
        assert "mine.py, line" in found["code"]["said"]


@pytest.mark.long
def test_the_exit_code_of_the_doctor_depends_on_its_findings(device, runner):

    async def main_(*arguments):
        words = ["client", "doctor", "--config", str(device / "client.toml"), *arguments]
        return await asyncio.to_thread(CliRunner().invoke, main, words)

    done = runner.run(main_())
    assert (done.exit_code, "No problems found." in done.output) == (0, True), done.output
    assert json.loads(runner.run(main_("--json")).output)["healthy"] is True
    (device / "client-state" / "identity.pem").unlink()
    done = runner.run(main_())
    assert done.exit_code == 1
    assert "1 to fix" in done.output
    assert "→ Restore it" in done.output


@pytest.mark.parametrize(
    ("raw", "code"), [(b"", Code.MALFORMED), (b"\x00\x10\x00\x01", Code.TOO_LARGE)]
)
def test_the_size_of_a_measurement_is_limited(runner, federation, raw, code):
    """A server sends at most one chunk."""
    channel = federation.channel(federation.enrol("measurer"))
    assert runner.run(ask(channel, methods.MEASURE, raw)).code is code


def test_measuring_is_for_enrolled_clients(runner, federation):
    identity_, _ = federation.forge("nobody")
    channel = federation.channel(identity_)
    assert runner.run(ask(channel, methods.MEASURE, bytes(4))).code is Code.UNKNOWN_CLIENT
