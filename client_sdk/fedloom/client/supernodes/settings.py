"""Settings of a bridge: `bridge.toml`."""

from dataclasses import dataclass, replace
from pathlib import Path

from fedloom.protocol import settings
from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings import setting, toml

FILE = "bridge.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeConfig:
    """Settings of a bridge; paths are relative to the file."""

    listen: str = setting("0.0.0.0:9092", doc="host:port for SuperNodes, with TLS")
    certificate: Path = setting(
        doc="certificate chain in PEM; a SuperNode has its root as --root-certificates",
        example="bridge.pem",
    )
    key: Path = setting(doc="key of that certificate in PEM", example="bridge.key")
    app: Path = setting(
        doc="the Flower app that SuperNodes run: its folder, or a FAB file of `flwr build`",
        example="quickstart",
    )
    client_fn: bool = setting(
        False, doc="whether the app's ClientApp is made by client_fn, as of a NumPyClient"
    )
    evaluate: bool = setting(
        True, doc="whether the app has a function that evaluates, for runs that evaluate"
    )

    def __post_init__(self) -> None:
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
            raise UsageError(f"Expected listen as host:port, got {self.listen!r}.")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of `listen`."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


def load(directory: Path) -> BridgeConfig:
    """Read `bridge.toml` in a bridge's folder.

    Raises:
        UsageError: it is missing or cannot be read, or a setting is unknown or not valid.
    """
    path = directory / FILE
    document = toml.read(path, "settings", missing="write one, as docs/flower.md shows")
    with settings.within(path):
        config = settings.build(BridgeConfig, settings.from_table(BridgeConfig, document))
    paths = {name: directory / getattr(config, name) for name in ("certificate", "key", "app")}
    return replace(config, **paths)
