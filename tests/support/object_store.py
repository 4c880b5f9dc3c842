"""A server that speaks S3, as a process on loopback, and a proxy before it that makes faults."""

import http.client
import random
import subprocess
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cluster import object_store
from support.patience import PATIENCE_S
from support.ports import steady_port

CREDENTIALS = object_store.CREDENTIALS


class S3Server:
    """moto's server with an empty bucket; ended by `close`.

    Its objects are in memory: it must live as long as they are needed.
    """

    def __init__(self, log):
        self.port = steady_port()
        self.endpoint = object_store.endpoint(self.port)
        with Path(log).open("w") as file:
            command = object_store.command(self.port)
            self._process = subprocess.Popen(command, stdout=file, stderr=file)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.request("PUT", object_store.BUCKET)
            except OSError:
                assert time.monotonic() < deadline, Path(log).read_text()
                time.sleep(0.05)
            else:
                break

    def request(self, method, path, data=None):
        """The body of a reply; the server asks for no credentials."""
        return object_store.request(self.port, method, path, data)

    def url(self, prefix="", endpoint=""):
        """The setting `store`."""
        return object_store.url(endpoint or self.endpoint, prefix)

    def close(self):
        self._process.kill()
        self._process.wait()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """Nothing: a server that is killed cuts its connections."""


class FaultProxy:
    """Passes requests on, and makes faults; ended by `close`.

    Attributes:
        error_rate: share of requests that are answered 503, half of them after they were done.
        cut_rate: share of replies to GET that are cut, and of PUTs that are cut on their way.
        slow_rate: share of requests that take `slow_s`.
        is_down: whether every request is answered 503.
        corrupt: part of the names whose bytes are changed on the way to the reader.
        made: how many of each fault.
        puts: names of the objects that were put, in order.
        gets: likewise.
    """

    def __init__(self, target, seed=1):
        self.error_rate = self.cut_rate = self.slow_rate = 0.0
        self.slow_s, self.is_down, self.corrupt = 2.0, False, None
        self.made, self.puts, self.gets = Counter(), [], []
        self._random, self._lock = random.Random(seed), threading.Lock()
        self.target = target
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def happens(self, fault, rate):
        """Whether a fault is made now."""
        with self._lock:
            made = self._random.random() < rate
            self.made[fault] += made
            return made

    def note(self, method, path):
        """The name of a request's object, which is noted."""
        name = path.partition("?")[0].split("/", 2)[-1]
        {"PUT": self.puts, "GET": self.gets}.get(method, []).append(name)
        return name

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """One connection to a `FaultProxy`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self):
        proxy, length = self.server.proxy, int(self.headers.get("content-length", 0))
        if self.command == "PUT" and proxy.happens("cut PUT", proxy.cut_rate):
            self.rfile.read(length // 2)
            self.close_connection = True
            return
        body = self.rfile.read(length)
        if proxy.happens("slow", proxy.slow_rate):
            time.sleep(proxy.slow_s)
        if proxy.is_down or proxy.happens("error before", proxy.error_rate / 2):
            self.reply(503, b"<Error><Code>SlowDown</Code></Error>")
            return
        status, headers, data = self.forward(body)
        name = proxy.note(self.command, self.path)
        if proxy.happens("error after", proxy.error_rate / 2):
            self.reply(503, b"<Error><Code>InternalError</Code></Error>")
        elif self.command == "GET":
            self.reply_to_get(name, status, headers, data)
        else:
            self.reply(status, data, headers)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

    def reply_to_get(self, name, status, headers, data):
        proxy, length = self.server.proxy, len(data)
        if proxy.corrupt is not None and proxy.corrupt in name:
            proxy.made["corrupt"] += 1
            data = data[:-1] + bytes([data[-1] ^ 1])
        if proxy.happens("cut GET", proxy.cut_rate):
            data, self.close_connection = data[: length // 2], True
        self.reply(status, data, headers, length)

    def forward(self, body):
        host = self.server.proxy.target.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=PATIENCE_S)
        try:
            connection.request(self.command, self.path, body, dict(self.headers))
            found = connection.getresponse()
            return found.status, found.getheaders(), found.read()
        finally:
            connection.close()

    def reply(self, status, data, headers=(), length=None):
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in _OF_A_CONNECTION:
                self.send_header(name, value)
        self.send_header("content-length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)


_OF_A_CONNECTION = ("content-length", "transfer-encoding", "connection", "date", "server")
