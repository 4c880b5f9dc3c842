"""moto's server, which speaks S3, on loopback. It keeps its objects in memory."""

import sys
import urllib.request

BUCKET = "models-and-updates"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "loopback",
    "AWS_SECRET_ACCESS_KEY": "any-as-none-is-asked-for",
    "AWS_REGION": "us-east-1",
}
"""What a server that uses the store has in its environment."""


def command(port: int) -> list[str]:
    """The command that runs it."""
    return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]


def endpoint(port: int) -> str:
    """Its URL."""
    return f"http://127.0.0.1:{port}"


def request(port: int, method: str, path: str, data: bytes | None = None) -> bytes:
    """The body of a reply; the server asks for no credentials.

    Raises:
        OSError: it does not answer.
    """
    asked = urllib.request.Request(f"{endpoint(port)}/{path}", data, method=method)
    with urllib.request.urlopen(asked, timeout=60.0) as reply:
        return bytes(reply.read())


def url(endpoint: str, prefix: str = "") -> str:
    """The setting `store`."""
    return f"s3://{BUCKET}/{prefix}?endpoint={endpoint}"
