"""The commands that take a folder's files to real devices: for its README, and for `fedloom up`."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeployCommands:
    """Command lines, by where they are typed.

    Attributes:
        server: on the server's machine.
        device: on each device.
        operator: where the server runs, once devices are there.
    """

    server: Sequence[str]
    device: Sequence[str]
    operator: Sequence[str]


def deploy_commands(clients: Sequence[str], data: str, requirement: str) -> DeployCommands:
    """The commands of a deployment.

    Args:
        clients: names of clients; the device's commands are those of the first.
        data: name of a file of data, such as `site-1.csv`.
        requirement: what pip installs on a device.
    """
    invited = " ".join(f"--client {name}" for name in clients)
    return DeployCommands(
        server=(
            "export SERVER=server.example.org",
            "pip install 'fedloom[server]'",
            "fedloom server init --name $SERVER",
            "fedloom server run &",
            f"fedloom token create {invited} --out tokens",
        ),
        device=(
            "export SERVER=server.example.org",
            f"pip install '{requirement}'",
            f"fedloom client enroll --server $SERVER:7444 --token @{clients[0]}.token --dir device",
            f"export DATA=/path/to/{data}",
            "fedloom client doctor --config device/client.toml --code my_client.py:client",
            "fedloom client run my_client.py:client --config device/client.toml",
        ),
        operator=(
            "fedloom model init my_client.py:client --out initial.safetensors",
            "fedloom run submit run.toml --model initial.safetensors --watch",
        ),
    )
