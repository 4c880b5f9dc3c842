"""Command groups that import a command only when it is used.

`fedloom client run` starts on small devices, so it must not import what other commands need. The
server and the simulator are optional extras: their commands are known by name only, and a missing
extra is reported with the command that installs it.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem

EXTRAS = {
    "fedloom.server": "server",
    "fedloom.simulation": "sim",
    "fedloom.simulation.project.command": "server",
    "fedloom.simulation.workers.ray": "ray",
}
"""The extra that installs the dependencies of a package, or of a module in it."""


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command that is imported on first use.

    Attributes:
        target: `module:attribute`.
        help: shown in the list of commands.
    """

    target: str
    help: str


def load(target: str) -> Any:
    """Import `module:attribute`.

    Raises:
        UsageError: the extra that the module needs is not installed.
    """
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        package = ".".join(module.split(".")[:2])
        missing = error.name or module
        if package not in EXTRAS or (missing.startswith("fedloom.") and missing != package):
            raise
        from fedloom.protocol.errors import UsageError  # noqa: PLC0415 - it imports grpc

        extra = EXTRAS.get(module, EXTRAS[package])
        raise UsageError(
            f"This needs an extra that is not installed ({missing} is missing): "
            f"pip install 'fedloom[{extra}]'"
        ) from error


class LazyGroup(click.Group):
    """A group that imports some of its commands on first use and lists all in a fixed order.

    Args:
        lazy: the commands that are imported on first use, by name.
        order: the commands that are listed first. The others follow in the order of definition,
            lazy ones first.
    """

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, LazyCommand] | None = None,
        order: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self._lazy = dict(lazy or {})
        self._order = order

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Every command, in order."""
        return list(dict.fromkeys((*self._order, *self._lazy, *self.commands)))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command, imported if necessary."""
        if cmd_name in self._lazy and cmd_name not in self.commands:
            self.add_command(load(self._lazy[cmd_name].target), cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is named; an error suggests the one that may be meant."""
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            from fedloom.cli.common.suggest import meant  # noqa: PLC0415 - rarely used

            ctx.fail(f"No such command {args[0]!r}.{meant(self, ctx, args)}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands with this prefix, without importing any; options as click completes them."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        known = [CompletionItem(name, help=self._help(name)) for name in names]
        return known + click.Command.shell_complete(self, ctx, incomplete)

    def _help(self, name: str) -> str:
        lazy = self._lazy.get(name)
        return lazy.help if lazy else self.commands[name].get_short_help_str(limit=400)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        rows = [(name, self._help(name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
