"""haproxy before servers on loopback, by the file of `deploy/` but for its addresses and ports.

The public name is `localhost`, which every machine resolves.
"""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from fedloom.server.config import ServerConfig

CONFIG = Path(__file__).parents[2] / "deploy" / "haproxy" / "haproxy.cfg"
NAME = "localhost"
PORTS = {"fleet": 7443, "enrolment": 7444, "console": 7445}
HOSTS = ("fl-1", "fl-2", "fl-3")


def program() -> str | None:
    """The program; None where it is not installed. Debian's is not on the path of all users."""
    return shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")


def configured(port: int, servers: Iterable[ServerConfig]) -> str:
    """The file of `deploy/` for a port of loopback, before up to three servers with `health`."""
    text = CONFIG.read_text().replace("maxconn 20000", "maxconn 1000")
    text = text.replace("bind :443", f"bind 127.0.0.1:{port}").replace("fl.example.org", NAME)
    text = re.sub(r"( *server )two( fl-)2(.*)", r"\g<0>\n\1three\g<2>3\3", text)
    for host, each in zip(HOSTS, servers, strict=False):
        check = each.health.rpartition(":")[2]
        for name, standard in PORTS.items():
            own = f"{getattr(each, name)} check port {check}"
            text = text.replace(f"{host}.example.org:{standard}", own)
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if ".example.org:" not in line)
