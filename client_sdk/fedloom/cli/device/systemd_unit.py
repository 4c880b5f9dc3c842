"""The text of an agent's hardened systemd unit.

Sources: systemd.exec(5), systemd.service(5); `systemd-analyze security` rates the unit.

The sandbox allows AF_NETLINK, for name resolution; `@resources`, to lower the priority of training;
/proc without other users' processes, to read the load; and, if torch is installed, writable and
executable memory, because torch compiles convolutions at run time (without it:
`could not create a primitive`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STOP_S = 15
"""Seconds after the agent's own stop before systemd kills it."""
BACKOFF_FROM = 254
"""First version of systemd with RestartSteps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A systemd unit.

    Attributes:
        command: that runs the agent, with an absolute path.
        user: to run as.
        state_directory: its folder in /var/lib, which systemd creates for the user.
        writable: other folders that it writes to.
        working: the working directory.
        stop_s: maximum time that the agent takes to stop, seconds.
        compiles: memory must be writable and executable, as for torch.
        gpu: devices must be accessible.
        home: code or settings are in a home directory.
        temporary: code or settings are in /tmp or /var/tmp.
        systemd: version.
    """

    command: Sequence[str]
    user: str
    state_directory: str = ""
    writable: Sequence[Path] = ()
    working: Path
    stop_s: float
    compiles: bool
    gpu: bool = False
    home: bool = False
    temporary: bool = False
    systemd: int = 252

    def text(self) -> str:
        """The unit."""
        head = [
            "# Written by `fedloom client install-service`, which overwrites it at the next run.",
            "# Put changes into an override: systemctl edit UNIT",
        ]
        install = ["", "[Install]", "WantedBy=multi-user.target", ""]
        return "\n".join([*head, *self._unit(), *self._service(), *self._sandbox(), *install])

    def _unit(self) -> list[str]:
        return [
            "[Unit]",
            "Description=fedloom client",
            "Wants=network-online.target",
            "After=network-online.target time-sync.target",
            "# No limit on restarts: hours without a server are normal.",
            "StartLimitIntervalSec=0",
        ]

    def _service(self) -> list[str]:
        backoff = ["RestartSteps=6", "RestartMaxDelaySec=10min"]
        return [
            "",
            "[Service]",
            "Type=notify",
            "NotifyAccess=main",
            "WatchdogSec=5min",
            f"User={self.user}",
            *self._state(),
            "UMask=0077",
            f"WorkingDirectory={_literal(self.working)}",
            f"ExecStart={' '.join(map(_word, self.command))}",
            "Restart=always",
            *(["RestartSec=5s", *backoff] if self.systemd >= BACKOFF_FROM else ["RestartSec=30s"]),
            "# 2: invalid settings; 3: the server refuses the device. A restart fixes neither.",
            "RestartPreventExitStatus=2 3",
            "# The agent finishes its training step and saves a checkpoint.",
            f"TimeoutStopSec={round(self.stop_s) + STOP_S}s",
            "KillMode=mixed",
            "Nice=10",
            "OOMScoreAdjust=500",
            "# Without memory the kernel ends the training process; the agent continues.",
            "OOMPolicy=continue",
        ]

    def _state(self) -> list[str]:
        own = [f"StateDirectory={self.state_directory}", "StateDirectoryMode=0700"]
        return [
            *(own if self.state_directory else []),
            *(f"ReadWritePaths={_word(path)}" for path in self.writable),
        ]

    def _sandbox(self) -> list[str]:
        devices = (
            ["# Devices are accessible: --gpu."]
            if self.gpu
            else ["PrivateDevices=yes", "DevicePolicy=closed"]
        )
        memory = (
            "# No MemoryDenyWriteExecute: torch compiles code at run time."
            if self.compiles
            else "MemoryDenyWriteExecute=yes"
        )
        return [
            "",
            "# Sandbox: read access to the system, write access to its folder, network access.",
            "NoNewPrivileges=yes",
            "CapabilityBoundingSet=",
            "AmbientCapabilities=",
            "ProtectSystem=strict",
            f"ProtectHome={'read-only' if self.home else 'yes'}",
            f"PrivateTmp={'no' if self.temporary else 'yes'}",
            "PrivateUsers=yes",
            *devices,
            "ProtectKernelTunables=yes",
            "ProtectKernelModules=yes",
            "ProtectKernelLogs=yes",
            "ProtectControlGroups=yes",
            "ProtectClock=yes",
            "ProtectHostname=yes",
            "ProtectProc=invisible",
            "KeyringMode=private",
            "LockPersonality=yes",
            memory,
            "RemoveIPC=yes",
            "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
            "RestrictNamespaces=yes",
            "RestrictRealtime=yes",
            "RestrictSUIDSGID=yes",
            "SystemCallArchitectures=native",
            "SystemCallFilter=@system-service",
            "SystemCallFilter=~@privileged",
            "SystemCallErrorNumber=EPERM",
        ]


def _literal(value: object) -> str:
    """A value with percent signs escaped, which begin systemd's specifiers."""
    return str(value).replace("%", "%%")


def _word(value: object) -> str:
    """One word of a line, quoted if necessary (systemd.syntax(7))."""
    text = _literal(value).replace("$", "$$")
    if re.fullmatch(r"[\w@%+=:,./$-]+", text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
