"""Files of `deploy/` for replicas: their scripts make states that servers start from."""

import os
import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from cluster import haproxy
from fedloom.server import config
from fedloom.server.metrics.gauges import GAUGES
from support.pods import prepared

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes" / "replicas.yaml"
COMPOSE = ROOT / "deploy" / "containers" / "compose-replicas.yaml"


@pytest.mark.parametrize("path", [KUBERNETES, COMPOSE], ids=lambda path: path.name)
def test_the_command_at_the_top_makes_a_configuration_for_three(path, tmp_path):
    """With the names of the replicas, which only a cluster resolves, replaced for the check."""
    if haproxy.program() is None:
        pytest.skip("haproxy is not installed")
    (command,) = re.findall(r"^#   (sed .* > haproxy\.cfg)$", path.read_text(), re.MULTILINE)
    folder = path.parent if "../" in command else ROOT
    command = command.replace("> haproxy.cfg", f"> {tmp_path}/haproxy.cfg")
    subprocess.run(["sh", "-ec", command], cwd=folder, check=True)
    text = (tmp_path / "haproxy.cfg").read_text()
    assert "bind :8443" in text
    servers = re.findall(r"^ *server \w+ (fl-\d):\d+", text, re.MULTILINE)
    assert servers == ["fl-1", "fl-2", "fl-3"] * 3
    made = tmp_path / "checked.cfg"
    made.write_text(re.sub(r"fl-\d:", "127.0.0.1:", text))
    subprocess.run([haproxy.program(), "-c", "-f", made], check=True, stdout=subprocess.DEVNULL)


def test_a_pod_gets_the_settings_each_time_and_the_authority_once(tmp_path):
    """Private, whatever the modes of the mounted secret; later authorities come from the ledger."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    for name in ("server.toml", "master.key", "root.pem", "issuing.pem"):
        (secrets / name).write_text(f"{name} 1")
    state = prepared(KUBERNETES, tmp_path / "pod", secrets)
    for name in ("server.toml", "issuing.pem"):
        (secrets / name).write_text(f"{name} 2")
    prepared(KUBERNETES, tmp_path / "pod", secrets)
    found = {
        path.relative_to(state).as_posix(): path for path in state.rglob("*") if path.is_file()
    }
    assert {name: path.read_text()[-1] for name, path in found.items()} == {
        "server.toml": "2", "master.key": "1", "pki/root.pem": "1", "pki/issuing.pem": "1"
    }  # fmt: skip
    assert {path.stat().st_mode & 0o777 for path in found.values()} == {0o600}
    assert state.stat().st_mode & 0o777 == 0o700


class _Store(BaseHTTPRequestHandler):
    def do_PUT(self):
        self.server.put.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def test_compose_makes_the_states_of_three_once(tmp_path):
    """Alike but for what is each one's own; and the bucket, which is in memory, each time."""
    script = yaml.safe_load(COMPOSE.read_text())["services"]["settings"]["command"][0]
    with HTTPServer(("127.0.0.1", 0), _Store) as store:
        store.put = []
        thread = Thread(target=store.serve_forever, args=(0.05,))
        thread.start()
        address = f"127.0.0.1:{store.server_port}"
        script = script.replace("$$", "$").replace(
            'u.Request("http://store:5000', f'u.Request("http://{address}'
        )
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        keys = set()
        for _ in range(2):
            done = subprocess.run(
                ["sh", "-euc", script], cwd=tmp_path, env={**os.environ, "PATH": path},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            keys |= {(tmp_path / f"fl-{n}" / "master.key").read_text() for n in (1, 2, 3)}
        store.shutdown()
        thread.join()
    assert store.put == ["/fedloom"] * 2
    assert len(keys) == 1
    made, *others = [config.load(tmp_path / f"fl-{n}") for n in (1, 2, 3)]
    assert others == [made, made]
    assert made.gates
    assert made.store == "s3://fedloom/replicas?endpoint=http://store:5000&region=us-east-1"
    networks = yaml.safe_load(COMPOSE.read_text())["networks"]["default"]["ipam"]["config"]
    assert made.proxies == (networks[0]["subnet"],)
    assert not (tmp_path / "fl-2" / "pki" / "root.key").exists()


def test_replicas_of_the_manifest_are_those_of_haproxy():
    """Each pod has a Service of the name that haproxy's file gets."""
    found = [each for each in yaml.safe_load_all(KUBERNETES.read_text()) if each]
    (pods,) = (each for each in found if each["kind"] == "StatefulSet")
    services = {
        each["spec"]["selector"].get("statefulset.kubernetes.io/pod-name"): each["metadata"]["name"]
        for each in found
        if each["kind"] == "Service"
    }
    names = {f"fedloom-{n}": f"fl-{n + 1}" for n in range(pods["spec"]["replicas"])}
    assert names.items() <= services.items()


def test_the_autoscaler_goes_by_a_metric_and_haproxy_knows_all_replicas(tmp_path):
    """Up to its most; each has a Service, as those of `replicas.yaml` have."""
    path = KUBERNETES.with_name("replicas-autoscaling.yaml")
    scaler, *services = yaml.safe_load_all(path.read_text())
    (metric,) = scaler["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] in {each.name for each in GAUGES}
    first = [each for each in yaml.safe_load_all(KUBERNETES.read_text()) if each]
    pods = next(each for each in first if each["kind"] == "StatefulSet")
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (pods["kind"], pods["metadata"]["name"])
    assert scaler["spec"]["minReplicas"] == pods["spec"]["replicas"]
    numbers = range(pods["spec"]["replicas"], scaler["spec"]["maxReplicas"])
    example = next(each for each in first if each["metadata"]["name"] == "fl-1")
    for number, service in zip(numbers, services, strict=True):
        expected = yaml.safe_load(yaml.safe_dump(example))
        expected["metadata"]["name"] = f"fl-{number + 1}"
        expected["spec"]["selector"] = {"statefulset.kubernetes.io/pod-name": f"fedloom-{number}"}
        assert service == expected
    (command,) = re.findall(r"^#   (sed .* > six\.cfg)$", path.read_text(), re.MULTILINE)
    (tmp_path / "haproxy.cfg").write_text("  server three fl-3:7443 check\n")
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True)
    servers = re.findall(
        r"^ *server (\w+ fl-\d):\d+ check$", (tmp_path / "six.cfg").read_text(), re.MULTILINE
    )
    assert servers == ["three fl-3", "four fl-4", "five fl-5", "six fl-6"]
