"""`fedloom client service-file`: the agent as a job of launchd or a task of Task Scheduler.

Sources: launchd.plist(5); Task Scheduler Schema, [MS-TSCH] section 2.5. Neither system was at hand:
the files are checked to be well formed, and were run on neither.
"""

import getpass
import plistlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import json_option
from fedloom.protocol.errors import UsageError

LABEL = "fedloom-client"
_TASK = "http://schemas.microsoft.com/windows/2004/02/mit/task"
_LOCAL_SERVICE = "S-1-5-19"
"""The account NT AUTHORITY\\LOCAL SERVICE: few rights, and no password."""
_RESTART_S = 30
_NICE, _BELOW_NORMAL = 10, "7"


def launchd_job(command: Sequence[str], working: Path, stop_s: float, user: str) -> bytes:
    """A property list for /Library/LaunchDaemons.

    Args:
        command: that runs the agent.
        working: the working directory.
        stop_s: maximum time that the agent takes to stop, seconds.
        user: whom it runs as; jobs of that folder otherwise run as root.
    """
    job = {
        "Label": LABEL,
        "UserName": user,
        "ProgramArguments": list(command),
        "WorkingDirectory": str(working),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": _RESTART_S,
        "ExitTimeOut": round(stop_s) + 15,
        "ProcessType": "Background",
        "Nice": _NICE,
        "Umask": 0o077,
        "StandardErrorPath": str(working / f"{LABEL}.log"),
    }
    return plistlib.dumps(job, sort_keys=False)


def scheduled_task(command: Sequence[str], working: Path) -> bytes:
    """A task in XML, UTF-16, for `schtasks /Create /XML`.

    Args:
        command: that runs the agent.
        working: the working directory.
    """
    ET.register_namespace("", _TASK)
    task = ET.Element(f"{{{_TASK}}}Task", version="1.2")

    def put(parent: ET.Element, name: str, text: str = "") -> ET.Element:
        child = ET.SubElement(parent, f"{{{_TASK}}}{name}")
        child.text = text or None
        return child

    put(put(put(task, "Triggers"), "BootTrigger"), "Enabled", "true")
    principal = put(put(task, "Principals"), "Principal")
    principal.set("id", "Author")
    put(principal, "UserId", _LOCAL_SERVICE)
    put(principal, "RunLevel", "LeastPrivilege")
    settings = put(task, "Settings")
    put(settings, "MultipleInstancesPolicy", "IgnoreNew")
    put(settings, "DisallowStartIfOnBatteries", "false")
    put(settings, "StopIfGoingOnBatteries", "false")
    put(settings, "ExecutionTimeLimit", "PT0S")
    put(settings, "Priority", _BELOW_NORMAL)
    restart = put(settings, "RestartOnFailure")
    put(restart, "Interval", "PT1M")
    put(restart, "Count", "999")
    actions = put(task, "Actions")
    actions.set("Context", "Author")
    run = put(actions, "Exec")
    put(run, "Command", command[0])
    put(run, "Arguments", subprocess.list2cmdline(command[1:]))
    put(run, "WorkingDirectory", str(working))
    ET.indent(task)
    written: bytes = ET.tostring(task, encoding="utf-16", xml_declaration=True)
    return written


@click.command("service-file")
@click.argument("system", type=click.Choice(["launchd", "task-scheduler"]))
@click.argument("code", metavar="FILE.py:NAME|MODULE:NAME")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="FEDLOOM_CONFIG",
    default="client.toml",
    show_default=True,
    metavar="FILE",
    help="The device's client.toml.",
)
@click.option(
    "--user",
    metavar="NAME",
    help="Whom a job of launchd runs as. Default: you. Windows' task runs as LOCAL SERVICE.",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
@json_option
def service_file(system: str, code: str, config: Path, user: str | None, out: Path) -> None:
    """Write a file that starts this device's agent at boot, on macOS or Windows.

    The agent was run on neither. On Linux use `fedloom client install-service`.

    \b
    Examples:
      fedloom client service-file launchd my_client.py:client --out fedloom-client.plist
      fedloom client service-file task-scheduler my_client.py:client --out fedloom-client.xml
    """
    from fedloom.cli.device.install_service import absolute_code  # noqa: PLC0415
    from fedloom.client.config import load  # noqa: PLC0415 - it imports grpc

    if user is not None and system != "launchd":
        raise UsageError(
            f"Expected --user with launchd, got it with {system}, whose task runs as LOCAL "
            "SERVICE. Leave it out."
        )
    code, config = absolute_code(code), config.resolve()
    settings = load(config)
    command = (sys.executable, "-m", "fedloom.cli.main", "client", "run", code,
               "--config", str(config))  # fmt: skip
    working = config.parent
    if system == "launchd":
        stop_s = settings.interruptions.stop_s
        out.write_bytes(launchd_job(command, working, stop_s, user or getpass.getuser()))
        steps = [
            f"sudo cp {out} /Library/LaunchDaemons/{LABEL}.plist",
            f"sudo launchctl bootstrap system /Library/LaunchDaemons/{LABEL}.plist",
        ]
    else:
        out.write_bytes(scheduled_task(command, working))
        steps = [f"schtasks /Create /TN {LABEL} /XML {out}", f"schtasks /Run /TN {LABEL}"]
    text = "\n  ".join((f"Wrote {out}. Then, as an administrator:", *steps))
    output.emit_text({"file": str(out), "steps": steps}, text)
