"""A bridge, and stock `flower-supernode` processes beside a deployment."""

import os
import signal
import ssl
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedloom.protocol.trust.private_files import write_private
from support.flower import deployed
from support.patience import PATIENCE_S
from support.ports import steady_port

SUPERNODE = Path(sys.executable).with_name("flower-supernode")


def make_key(path):
    """A SuperNode's key pair, as flwr's documentation makes it."""
    words = ("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", path)
    subprocess.run([*map(str, words)], check=True)
    return path


class Bridged:
    """A bridge to a deployment, and its SuperNodes.

    Args:
        here: the deployment; its server runs.
        app: folder of the app.
        settings: further lines of bridge.toml.
    """

    def __init__(self, here, app, settings=""):
        self.here, self.app = here, app
        self.folder = here.directory / "bridge"
        self.folder.mkdir()
        self.port = steady_port()
        self._certify()
        (self.folder / "bridge.toml").write_text(
            f'listen = "127.0.0.1:{self.port}"\ncertificate = "tls.pem"\nkey = "tls.key"\n'
            f'app = "{app}"\n{settings}'
        )
        self.supernodes = {}

    def _certify(self):
        """A certificate of the federation's authority, as the operator's own would be."""
        pem = (self.here.server / "pki" / "server.pem").read_bytes()
        write_private(self.folder / "tls.pem", pem)
        write_private(self.folder / "tls.key", pem)
        self.root = self.here.server / "pki" / "root.pem"

    def key(self, name):
        """The key of a SuperNode, made on first use."""
        path = self.here.directory / f"{name}-key"
        return path if path.exists() else make_key(path)

    def enrol(self, name):
        """Enrol a SuperNode's key as a client; returns the key's file."""
        key = self.key(name)
        made = self.here.call("token", "create", "--client", name, "--dir", self.here.server)
        self.here.call(
            *("bridge", "enroll", "--server", f"127.0.0.1:{self.here.enrolment}"),
            *("--token", made["tokens"][0]["token"], "--key", f"{key}.pub", "--dir", self.folder),
        )
        return key

    def begin(self):
        """Start the bridge."""
        ready = self.here.directory / f"bridge-ready-{len(self.here.running)}"
        ready.unlink(missing_ok=True)
        words = ("bridge", "run", "--dir", self.folder, "--ready", ready)
        self.process = self.here.begin(*words, log=f"bridge-{len(self.here.running)}.log")
        self.here.waited(ready.exists)

    def kill(self, number=signal.SIGKILL):
        """End the bridge."""
        self.process.send_signal(number)
        self.process.wait()
        self.here.running.remove(self.process)

    def attend(self, name, number, of, key=None, more=""):
        """Start a stock SuperNode; `key` is None for one without."""
        home = self.here.directory / f"{name}-home"
        home.mkdir(exist_ok=True)
        environment = os.environ | {
            "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1", "PATH": f"{SUPERNODE.parent}:{os.environ['PATH']}",
        }  # fmt: skip
        words = [
            SUPERNODE, "--superlink", f"127.0.0.1:{self.port}", "--root-certificates", self.root,
            "--node-config", f"partition-id={number} num-partitions={of} {more}".strip(),
            "--port", steady_port(),
        ]  # fmt: skip
        if key is not None:
            words += ["--auth-supernode-private-key", key]
        with (self.here.directory / f"{name}.log").open("a") as out:
            process = subprocess.Popen(
                [*map(str, words)], env=environment, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self.supernodes[name] = process
        return process

    def end(self, name, number=signal.SIGKILL):
        """End a SuperNode with its children."""
        process = self.supernodes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        process.wait()

    def received(self, name):
        """How many trainings a SuperNode has begun, by its log."""
        return (self.here.directory / f"{name}.log").read_text().count("Receiving: train message")

    def objects(self):
        """Files of messages that the bridge holds."""
        return [p for p in self.folder.glob("nodes/*/mailbox/**/*") if p.is_file()]


@contextmanager
def bridged(directory, app, settings=""):
    """A server, and a bridge that is not running yet; they end with the block."""
    with deployed(directory, app) as here:
        here.serve(steady=True)
        bridge = Bridged(here, app, settings)
        try:
            yield here, bridge
        finally:
            for name in list(bridge.supernodes):
                bridge.end(name)


class Driven:
    """A SuperNode that a test drives call by call, with flwr's own HTTP client.

    Args:
        bridge: that it calls.
        key: file of its private key, or that of another one.
    """

    def __init__(self, bridge, key):
        private = load_ssh_private_key(Path(key).read_bytes(), None)
        self.public = public_key_to_bytes(private.public_key())
        self.headers = NodeAuthHttpInterceptor(private, private.public_key())
        self.base = f"https://127.0.0.1:{bridge.port}"
        tls = ssl.create_default_context(cafile=str(bridge.root))
        self.http = httpx.Client(verify=tls, timeout=PATIENCE_S)
        self.id = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.close()

    def call(self, name, message, *, change=None, node=None):
        """Make a call; returns its status and body.

        Args:
            name: of the call.
            message: its content, or bytes.
            change: of the signed headers.
            node: number of another node.
        """
        if "node" in getattr(message, "DESCRIPTOR", Node.DESCRIPTOR).fields_by_name:
            message.node.node_id = self.id if node is None else node
        data = message if isinstance(message, bytes) else message.SerializeToString()
        request = self.http.build_request("POST", f"{self.base}/v1/fleet/{name}", content=data)
        context = ProtobufRequestContext("", Node(), request)
        self.headers.intercept(context, lambda _: None)
        request.headers.update(change or {})
        for gone in [n for n, value in (change or {}).items() if value == ""]:
            del request.headers[gone]
        answer = self.http.send(request)
        return answer.status_code, answer.content

    def activate(self):
        status, body = self.call(
            "activate-node", ActivateNodeRequest(public_key=self.public, heartbeat_interval=30)
        )
        assert status == 200, body
        self.id = ActivateNodeResponse.FromString(body).node_id

    def pull(self):
        """The message for it, once there is one, with its objects."""
        while True:
            status, body = self.call("pull-messages", PullMessagesRequest())
            assert status == 200, body
            found = PullMessagesResponse.FromString(body)
            if found.messages_list:
                return found.messages_list[0]

    def reply(self, head, content):
        """A reply to a message: its call and its objects."""
        asked = message_from_proto(head)
        message = Message(content, reply_to=asked)
        message.metadata.__dict__["_message_id"] = message.object_id
        call = PushMessagesRequest(
            messages_list=[message_to_proto(remove_content_from_message(message))],
            message_object_trees=[get_object_tree(message)],
        )
        return call, {n: o.deflate() for n, o in get_all_nested_objects(message).items()}

    def push(self, call, objects):
        """Push a reply; returns the first status but 200, or 200."""
        status, body = self.call("push-messages", call)
        if status != 200:
            return status
        found = PushMessagesResponse.FromString(body)
        for name in found.objects_to_push:
            status, body = self.call("push-object", PushObjectRequest(
                object_id=name, object_content=objects[name], session_id=found.session_id
            ))  # fmt: skip
            if status != 200:
                return status
        return status
