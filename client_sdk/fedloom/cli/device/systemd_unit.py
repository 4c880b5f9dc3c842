"""The text of an agent's hardened systemd unit.

Sources: systemd.exec(5), systemd.service(5); `systemd-analyze security` measures it.

What it allows, and why: AF_NETLINK, by which name resolution learns of addresses; `@resources`,
by which the training lowers its priority; the whole of /proc but other users' processes, where
probes read the load; writable and executable memory where torch is installed, whose convolutions
are compiled when they run (`could not create a primitive` without it).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STOP_S = 15
"""Beyond the agent's own stop, before systemd kills it."""
BACKOFF_FROM = 254
"""The systemd that knows RestartSteps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What a unit depends on.

    Attributes:
        command: that runs the agent, absolute.
        user: to run as; of its own.
        state_directory: its folder in /var/lib, which systemd makes and gives to the user.
        writable: folders elsewhere that it writes to.
        working: where it runs.
        stop_s: what the agent takes to stop at most, seconds.
        compiles: memory must be writable and executable, as for torch.
        gpu: devices must be seen.
        home: code or settings are in somebody's home.
        temporary: they are in /tmp or /var/tmp.
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
            "# Made by `fedloom client install-service`, which overwrites it when it runs again.",
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
            "# It may be restarted for ever: hours without a server are normal.",
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
            "# 2: its settings are wrong; 3: the server refuses it for good. Neither mends itself.",
            "RestartPreventExitStatus=2 3",
            "# The agent ends its step and saves first.",
            f"TimeoutStopSec={round(self.stop_s) + STOP_S}s",
            "KillMode=mixed",
            "Nice=10",
            "OOMScoreAdjust=500",
        ]

    def _state(self) -> list[str]:
        own = [f"StateDirectory={self.state_directory}", "StateDirectoryMode=0700"]
        return [
            *(own if self.state_directory else []),
            *(f"ReadWritePaths={_word(path)}" for path in self.writable),
        ]

    def _sandbox(self) -> list[str]:
        devices = (
            ["# Devices are seen: --gpu."]
            if self.gpu
            else ["PrivateDevices=yes", "DevicePolicy=closed"]
        )
        memory = (
            "# Not MemoryDenyWriteExecute: torch compiles when it runs."
            if self.compiles
            else "MemoryDenyWriteExecute=yes"
        )
        return [
            "",
            "# The sandbox: it reads the system, writes its own folder, and speaks to the network.",
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
    """As it is, whatever systemd reads into percent signs."""
    return str(value).replace("%", "%%")


def _word(value: object) -> str:
    """One word of a line, in the quotes that systemd.syntax(7) knows where it needs them."""
    text = _literal(value).replace("$", "$$")
    if re.fullmatch(r"[\w@%+=:,./$-]+", text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
