"""One port for all, told apart by name: haproxy, a server and devices as processes."""

import asyncio
import json
import re
import shutil
import ssl
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedloom.client import doctor
from fedloom.client.config import load
from fedloom.client.identity.enrol import enrol
from fedloom.protocol.errors import UsageError
from fedloom.protocol.tensors.container import write_file
from support import proxy
from support.ports import steady_port
from support.proxy import hello
from support.site_servers import RUN_SEED, Cluster, wait_until
from support.visitor import Visitor

pytestmark = pytest.mark.e2e

DEVICES = ["ward.one", "ward.two"]
SPEC = {
    "name": "door",
    "rounds": 2,
    "seed": RUN_SEED,
    "cohort": {"goal": 2, "quorum": 2, "deadline_s": 300.0},
    "train": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1},
}
EAGER = "127.0.0.9"


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A server behind haproxy with two devices; the server, the proxy and the devices' settings."""
    if shutil.which("haproxy") is None:
        pytest.skip("haproxy is not installed")
    directory, port = tmp_path_factory.mktemp("door"), steady_port()
    cluster = Cluster(directory)
    server = cluster.server("server", **proxy.settings(port)).start()
    server.enrolment = server.settings.public.enrolment
    door = proxy.Proxy(directory, port, server.settings)
    try:
        door.wait_for_servers()
        configs = cluster.enrol(server, DEVICES)
        cluster.run_devices(server, configs)
        wait_until(lambda: server.online() == len(DEVICES), "devices attend")
        yield SimpleNamespace(server=server, door=door, configs=configs, port=port)
    finally:
        cluster.close()
        door.close()


def trust(scene):
    """How a caller verifies the server."""
    return ssl.create_default_context(cafile=scene.server.state / "pki" / "root.pem")


def test_all_live_on_one_port(scene, tmp_path):
    """Devices enrol, connect and train by two names; the certificate holds all three."""
    for path in scene.configs:
        config = load(Path(path))
        assert config.server == f"localhost:{scene.port}"
        assert config.enrolment == f"enroll.localhost:{scene.port}"
    model = tmp_path / "model.safetensors"
    write_file(model, {"w": np.zeros(1000, np.float32)})
    run = scene.server.submit(SPEC, model)
    scene.server.ended(run)
    assert {each.state for each in scene.server.rounds(run)} == {"committed"}


def test_a_device_that_enrols_at_the_fleets_name_is_told_where(scene, tmp_path):
    """Its token stays valid."""
    token = scene.server.control.post("tokens", body={"client": "ward.four"})["token"]
    with pytest.raises(UsageError, match=rf"or at enroll\.localhost:{scene.port}"):
        asyncio.run(enrol(f"localhost:{scene.port}", token, tmp_path / "client.toml"))
    asyncio.run(enrol(scene.server.enrolment, token, tmp_path / "client.toml"))


def test_the_doctor_finds_no_fault(scene):
    """It connects by both names, as the agent does."""
    found = {each.check: each for each in doctor.examine(Path(scene.configs[0]))}
    for name in ("tls", "server", "enrolment"):
        assert found[name].level == "ok", found[name].said


def test_the_server_names_the_public_addresses(scene):
    """To operators, in tokens and in links to the console."""
    control = scene.server.control
    found = control.get("server")
    assert found["fleet"] == f"localhost:{scene.port}"
    assert found["enrolment"] == f"enroll.localhost:{scene.port}"
    assert found["console"] == f"https://console.localhost:{scene.port}"
    assert {"localhost", "enroll.localhost", "console.localhost"} <= set(found["names"])
    token = control.post("tokens", body={"client": "ward.three"})
    assert token["enrolment"] == f"enroll.localhost:{scene.port}"


def ask(scene, source, *lines, body=b""):
    """The console's answer to a request through the door, from an address of loopback."""
    head = "\r\n".join(
        [*lines, f"Host: console.localhost:{scene.port}", "Connection: close",
         f"Content-Length: {len(body)}", "", ""]
    )  # fmt: skip
    with (
        scene.door.connect(source) as plain,
        trust(scene).wrap_socket(plain, server_hostname="console.localhost") as tls,
    ):
        tls.sendall(head.encode() + body)
        answer = b""
        while part := tls.recv(65536):
            answer += part
    return answer.decode()


def test_the_console_answers_on_the_same_port(scene):
    """By its name; a page and its cookies are those of a site with TLS."""
    site = SimpleNamespace(url=f"https://console.localhost:{scene.port}", cookie="__Host-fedloom")
    visitor = Visitor(site, ca=str(scene.server.state / "pki" / "root.pem"))
    answer = visitor.ask("GET", "/login")
    assert answer.status == 200
    assert answer.headers["strict-transport-security"]
    answer = visitor.ask("GET", "/v1/runs")
    assert (answer.status, answer.kind) == (401, "denied")


def test_the_console_sees_the_address_behind_the_proxy(scene):
    """In the audit trail, whatever a header of the request claims."""
    answer = ask(
        scene, "127.0.0.7", "POST /login HTTP/1.1",
        "Content-Type: application/x-www-form-urlencoded", "X-Forwarded-For: 192.0.2.66",
        f"Origin: https://console.localhost:{scene.port}", body=b"name=eve&password=guess",
    )  # fmt: skip
    assert answer.startswith("HTTP/1.1 401 ")

    def noted():
        entries = scene.server.control.get("audit")["entries"]
        return [each for each in entries if each["action"] == "login.fail"]

    (entry,) = wait_until(noted, "an entry")
    assert json.loads(entry["detail"]) == {"address": "127.0.0.7"}


def test_the_proxys_log_joins_the_servers(scene):
    """It has the caller, the name, and the port from which it reached the server."""
    line = r"127\.0\.0\.1:\d+ localhost to fleet/one from 127\.0\.0\.1:\d+"
    assert wait_until(lambda: re.search(line, scene.door.log()), "a line")


@pytest.mark.parametrize(
    "sent",
    [
        hello("other.localhost"), hello("localhost.example.org"), hello(None),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["another name", "a longer name", "no name", "no TLS"],
)  # fmt: skip
def test_anything_else_is_closed_without_an_answer(scene, sent):
    """No server sees it, and it takes no five seconds."""
    begun = time.monotonic()
    assert scene.door.refuses(sent=sent)
    assert time.monotonic() - begun < 4.0


def test_a_greeting_in_several_segments_is_waited_for(scene):
    """As of a client with a post-quantum key: its name may be in a later segment."""
    whole = hello("console.localhost")
    with scene.door.connect() as connection:
        for start in range(0, len(whole), 100):
            connection.sendall(whole[start : start + 100])
            time.sleep(0.05)
        assert connection.recv(1) == b"\x16", "the server's greeting"


def test_a_certificate_is_needed_for_the_fleet_alone(scene):
    """The proxy does not change who may call what."""
    for name, is_refused in (("localhost", True), ("enroll.localhost", False)):
        context = trust(scene)
        context.set_alpn_protocols(["h2"])
        with scene.door.connect() as plain, context.wrap_socket(plain, server_hostname=name) as tls:
            tls.settimeout(2.0)
            tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
            try:
                found = tls.recv(1)
            except ssl.SSLError:
                found = b""
            assert (not found) == is_refused, name


def test_one_address_cannot_take_all_places_of_enrolment(scene):
    """Of 80 connections that it keeps, 64 are served; another address is, too."""
    with ExitStack() as stack:

        def answered(source):
            connection = stack.enter_context(scene.door.connect(source))
            connection.sendall(hello("enroll.localhost"))
            with suppress(ConnectionError):
                return connection.recv(1) == b"\x16"
            return False

        crowd = [answered("127.0.0.6") for _ in range(80)]
        assert (crowd[:60], crowd[64:]) == ([True] * 60, [False] * 16)
        assert answered("127.0.0.5")


def test_an_eager_address_is_limited_and_others_are_served(scene):
    """It gets its 200 connections, and then none for some seconds."""
    for _ in range(199):
        scene.door.connect(EAGER).close()
    refused = [scene.door.refuses(EAGER, hello("console.localhost")) for _ in range(6)]
    assert refused == [False] + [True] * 5
    assert ask(scene, "127.0.0.8", "GET /login HTTP/1.1").startswith("HTTP/1.1 200 ")
    assert scene.server.online() == len(DEVICES)
