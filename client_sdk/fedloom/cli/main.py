"""The entry point `fedloom`: loads command groups by name and maps errors to exit codes.

Invariant: importing this module imports only click, so help and shell completion are fast.
"""

import errno
import json
import os
import traceback
from typing import Any, NoReturn

import click

from fedloom.cli.common.lazy import LazyCommand, LazyGroup
from fedloom.cli.common.output import JSON
from fedloom.protocol.version import __version__

TRACEBACK = "FEDLOOM_TRACEBACK"

COMMANDS = {
    "new": LazyCommand(
        "fedloom.cli.project.command:new",
        "Write a folder with training code, data, a run and tests, which work as they are.",
    ),
    "up": LazyCommand(
        "fedloom.simulation.project.command:up",
        "Train in a folder of `fedloom new`: a server and its clients on this machine.",
    ),
    "server": LazyCommand("fedloom.server.commands:server", "Create a server and run it."),
    "store": LazyCommand(
        "fedloom.server.commands:store", "Check the object store of a server's models and updates."
    ),
    "token": LazyCommand("fedloom.cli.operator.tokens:token", "Invite devices by one-time tokens."),
    "client": LazyCommand(
        "fedloom.cli.device.client:client",
        "Enrol and run a device; list clients and choose which are selected.",
    ),
    "bridge": LazyCommand(
        "fedloom.cli.device.bridge:bridge",
        "Let Flower's SuperNodes take part in runs, as clients of the server.",
    ),
    "run": LazyCommand(
        "fedloom.cli.operator.runs:run", "Submit training runs; watch and control them."
    ),
    "round": LazyCommand(
        "fedloom.cli.operator.rounds:rounds",
        "Show rounds and each client's part; close, extend, abort or retry the open one.",
    ),
    "model": LazyCommand(
        "fedloom.cli.operator.models:model",
        "Create, list, compare, export and promote models, as safetensors.",
    ),
    "console": LazyCommand(
        "fedloom.cli.operator.console_link:console",
        "Print a one-time login link for the console, valid for two minutes.",
    ),
    "top": LazyCommand(
        "fedloom.cli.top.command:top",
        "Watch a server live: health, runs, the open round, its clients and recent refusals.",
    ),
    "user": LazyCommand(
        "fedloom.cli.operator.users:user", "Manage the users of the console and their permissions."
    ),
    "api-token": LazyCommand(
        "fedloom.cli.operator.api_tokens:api_token",
        "Manage API tokens for programs and for operators on other machines.",
    ),
    "privacy": LazyCommand(
        "fedloom.cli.operator.privacy:privacy",
        "Show what clients have spent over all private runs, and limit it by budgets.",
    ),
    "audit": LazyCommand(
        "fedloom.cli.operator.audit:audit",
        "List who did what and when, and verify that the trail is unchanged.",
    ),
    "completion": LazyCommand(
        "fedloom.cli.common.completion:completion", "Print a shell completion script."
    ),
    "simulate": LazyCommand(
        "fedloom.simulation.command:simulate",
        "Simulate an experiment: thousands of clients on this machine, with the server's rounds.",
    ),
    "demo": LazyCommand(
        "fedloom.simulation.demo.command:demo",
        "Run a federation on this machine: a server, eight client processes, one model.",
    ),
    "sweep": LazyCommand(
        "fedloom.simulation.sweep.command:sweep",
        "Search an experiment's settings for the best: grid, random or Bayesian, in parallel.",
    ),
    "reproduce": LazyCommand(
        "fedloom.simulation.studies.command:reproduce",
        "Reproduce a published table, or a study that compares strategies.",
    ),
}

EPILOG = f"""\
\b
A first run, in two commands:
  fedloom new machines
  fedloom up machines

\b
The same by hand:
  fedloom server init
  fedloom server run &
  fedloom token create --client laptop
  fedloom client enroll --server localhost:7444 --token TOKEN
  fedloom client run my_client.py:client &
  fedloom run template > run.toml
  fedloom model init my_client.py:client --out init.safetensors
  fedloom run submit run.toml --model init.safetensors
  fedloom run status --watch

\b
Exit codes:
  0  done
  1  an internal error, a failed run (run status --watch), or an action that was not confirmed
  2  invalid settings or arguments, or a command that the current state does not allow
  3  the peer refused the request
  4  stored bytes fail their checksum
  5  the peer is unreachable or out of space: try later
  130  interrupted

\b
With --json, errors are JSON documents too: {{"error": {{"kind", "message", ...}}}}.
Set {TRACEBACK}=1 to print the traceback of an error.
"""


class Root(LazyGroup):
    """The command `fedloom`."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; print an error as one line and exit with its code."""
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            ctx.exit(130)
        except SystemExit as error:
            _report_exit(ctx, error)
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # click exits quietly when the reader of a pipe has ended
            _report(ctx, error)


def _report_exit(ctx: click.Context, error: SystemExit) -> NoReturn:
    """Of users' code it is an error, even with code 0: the command has not done its work."""
    from fedloom.protocol.errors import UsageError  # noqa: PLC0415 - it imports grpc
    from fedloom.protocol.user_code import message, place  # noqa: PLC0415 - as above

    if not (where := place(error)):
        raise error
    _report(ctx, UsageError(f"{where}: {message(error)} ended this command. Raise an exception."))


def _report(ctx: click.Context, error: Exception) -> NoReturn:
    if isinstance(error, click.UsageError) and (words := _surplus(error)):
        said = f"Expected fewer arguments, got {words} too many; see its options above."
        error = click.UsageError(said, error.ctx)
    if isinstance(error, click.ClickException):
        if not ctx.meta.get(JSON):
            raise error
        fault: dict[str, Any] = {"kind": "usage", "message": error.format_message()}
        code = error.exit_code
    else:
        fault, code = _describe(error)
        if os.environ.get(TRACEBACK):
            traceback.print_exception(error)
    if ctx.meta.get(JSON):
        click.echo(json.dumps({"error": {**fault, "exit_code": code}}, indent=2))
    else:
        click.echo(f"error: {fault['message']}", err=True)
    ctx.exit(code)


def _surplus(error: click.UsageError) -> str:
    """The arguments that a command does not take, of click's message about them."""
    _, found, words = error.message.partition("Got unexpected extra argument")
    return words.strip("s ()") if found else ""


def _describe(error: Exception) -> tuple[dict[str, Any], int]:
    from fedloom.protocol import errors  # noqa: PLC0415 - it imports grpc

    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("rich"):
        # Devices are installed without rich, which takes 12 MB.
        error = errors.UsageError(
            "Tables need an extra that is not installed. Run pip install 'fedloom[server]', or "
            "use --json."
        )
    if isinstance(error, OSError):
        from fedloom.cli.common.os_errors import described  # noqa: PLC0415 - as above

        error = described(error)
    if isinstance(error, errors.Refusal):
        return {"kind": "refused", "message": str(error), "code": error.code}, error.exit_code
    if isinstance(error, errors.FedloomError):
        kinds: dict[type[errors.FedloomError], str] = {
            errors.UsageError: "usage",
            errors.DeniedError: "denied",
            errors.IntegrityError: "integrity",
            errors.UnavailableError: "unavailable",
        }
        kind = next((k for c, k in kinds.items() if isinstance(error, c)), "internal")
        return {"kind": kind, "message": str(error)}, error.exit_code
    message = f"unexpected {type(error).__name__}: {error} ({TRACEBACK}=1 shows where)"
    return {"kind": "internal", "message": message}, 1


@click.group(
    cls=Root,
    lazy=COMMANDS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="fedloom", message="%(prog)s %(version)s")
def main() -> None:
    """Federated learning that is exact, crash-safe, and the same in simulation and deployment.

    An operator creates a server, invites devices by tokens and submits runs. A device enrols once
    and then trains when selected; its data never leave it.
    """


if __name__ == "__main__":
    main()
