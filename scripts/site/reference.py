"""Generates the reference: commands from click, settings from declarations, API from docstrings."""

import ast
import functools
from importlib import resources
from pathlib import Path

import click
import griffe

from fedloom.cli.main import EPILOG, main
from fedloom.client.config import ClientConfig
from fedloom.client.owner import policy
from fedloom.client.supernodes.settings import BridgeConfig
from fedloom.protocol.settings import markdown
from fedloom.server.config import ServerConfig

ROOT = Path(__file__).parents[2]
ROOTS = ("client_sdk", "strategies", "server", "simulations")
HELPERS = ("torch", "numpy", "sklearn", "hf", "flower", "trees", "testing", "data")


@functools.cache
def pages():
    """Every generated page: site path → Markdown."""
    helpers = [f"fedloom.client.{name}" for name in HELPERS]
    return {
        "reference/commands.md": commands(),
        "reference/settings.md": settings(),
        "reference/client.md": api("fedloom.client", ["fedloom.client"]),
        "reference/client-helpers.md": api("Helpers of fedloom.client", helpers),
        "reference/strategies.md": api("fedloom.strategies", ["fedloom.strategies"]),
        "reference/simulation.md": api(
            "fedloom.simulation",
            ["fedloom.simulation", "fedloom.simulation.sources", "fedloom.simulation.sweep"],
        ),
    }


def commands():
    """The help of every command, as it is printed."""
    parts = [
        "# Commands\n\nThe help of every command, generated from it. `--help` prints the same.\n",
        f"```text\n{EPILOG.strip()}\n```\n",
    ]
    for path, command in _commands(main, ("fedloom",)):
        context = click.Context(command, info_name=" ".join(path), max_content_width=96)
        context.terminal_width = 96
        level = "##" if len(path) == 2 else "###"
        parts.append(f"{level} {' '.join(path)}\n\n````text\n{command.get_help(context)}\n````\n")
    return "\n".join(parts)


def _commands(group, path):
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))


def settings():
    """Every settings file, from the declarations that check it."""
    run = resources.files("fedloom.cli").joinpath("run.toml").read_text("utf-8")
    parts = {
        _SERVER: _without_variable(markdown(ServerConfig)),
        _CLIENT: markdown(ClientConfig),
        _POLICY: f"```toml\n{policy.template().rstrip()}\n```\n",
        _BRIDGE: _without_variable(markdown(BridgeConfig)),
        _RUN: f"```toml\n{run.rstrip()}\n```\n",
        _EXPERIMENT: _attributes("server", "fedloom.server.planning.spec", "RunSpec"),
        "`[engine]`:": _attributes(
            "simulations", "fedloom.simulation.experiment", "EngineSettings"
        ),
        _SWEEP: _attributes("simulations", "fedloom.simulation.sweep.settings", "Sweep"),
        "`[pruner]`:": _attributes("simulations", "fedloom.simulation.sweep.settings", "Pruner"),
    }
    return "\n".join([_SETTINGS, *(f"{words}\n\n{table}" for words, table in parts.items())])


_SETTINGS = """# Settings

Generated from the declarations that check the files. An unknown name is an error in each.
"""
_SERVER = """## server.toml

In the state directory of a server; see [deployment](../deployment.md)."""
_CLIENT = """## client.toml

On a device; see [client](../client.md). The variable overrides the file."""
_POLICY = """## policy.toml

Of a device's owner; see [safety](../safety.md#the-policy)."""
_BRIDGE = """## bridge.toml

Of a bridge for SuperNodes; see [Flower](../flower.md#supernodes-that-run-already)."""
_RUN = """## run.toml

Of a run, and of an experiment; `fedloom run template` prints it. See [rounds](../rounds.md) and
[strategies](../strategies/README.md)."""
_EXPERIMENT = """## experiment.toml

The settings of a run, and the tables of [an experiment](../simulation.md#an-experiment): `[data]`
([data](../data.md)), `[model]`, `[optimizer]`, `[client]`, `[engine]`, `[devices]`
([devices](../devices.md)), `[attack]` ([attacks](../strategies/robust.md#attacks)), `[test]`,
`[stop]`, `[output]`. The top level:"""
_SWEEP = """## sweep.toml

See [sweeps](../sweeps.md)."""


def _attributes(root, module, name):
    """The attributes of a dataclass as a table, from its docstring."""
    found = griffe.load(f"{module}.{name}", search_paths=[ROOT / root])
    rows = ["| setting | default | |", "|---|---|---|"]
    for section in found.docstring.parse("google", warnings=False):
        if section.kind is griffe.DocstringSectionKind.attributes:
            for each in section.value:
                default = found.members[each.name].value
                shown = f"`{default}`" if isinstance(default, str) else "–"
                words = " ".join(each.description.split()).replace("|", "\\|")
                rows.append(f"| `{each.name}` | {shown} | {words} |")
    return "\n".join(rows) + "\n"


def _without_variable(table):
    rows = [line.replace("\\|", "\0").split("|") for line in table.splitlines()]
    return "\n".join("|".join(row[:2] + row[3:]).replace("\0", "\\|") for row in rows) + "\n"


def api(title, modules):
    """A page of public modules: their docstrings, and every name that they export."""
    parts = [f"# {title}\n"]
    for module in modules:
        level = 2 if len(modules) > 1 else 1
        if level == 2:
            parts.append(f"## {module}\n")
        parts.append(_entry(module, "members: false", "show_root_heading: false", level=level + 1))
        parts += [_entry(path, level=level + 1) for path in exported(module)]
    return "\n".join(parts)


def _entry(path, *options, level=3):
    lines = [f"heading_level: {level}", "show_root_full_path: false", *options]
    return f"::: {path}\n    options:\n" + "".join(f"      {line}\n" for line in lines)


def exported(module):
    """The dotted paths of a module's public names, in the order of its imports and definitions."""
    path = _file(module)
    tree = ast.parse(path.read_text("utf-8"))
    package = module if path.name.startswith("__init__") else module.rpartition(".")[0]
    public = _all(tree)
    found = []
    for node in tree.body:
        match node:
            case ast.ImportFrom(module=source, names=names, level=level):
                base = source or ""
                if level:
                    up = package.split(".")[: len(package.split(".")) - level + 1]
                    base = ".".join([*up, *([source] if source else [])])
                if base.startswith("fedloom"):
                    found += [(a.asname or a.name, f"{base}.{a.name}") for a in names]
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.append((name, f"{module}.{name}"))
    kept = {name: p for name, p in found if (name in public if public else name[0] != "_")}
    return [
        path for path in kept.values() if path.startswith(f"{module}.") and _is_documented(path)
    ]


def _file(module):
    inner = module.replace(".", "/")
    for ending in ("/__init__.pyi", "/__init__.py", ".py"):
        for root in ROOTS:
            if (path := ROOT / root / f"{inner}{ending}").exists():
                return path
    raise FileNotFoundError(module)


def _all(tree):
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=names)):
                return {name.value for name in names}
    return set()


def _is_documented(path):
    """A class or function, and no constant or alias, whose docstring another place has."""
    module, _, name = path.rpartition(".")
    try:
        tree = ast.parse(_file(module).read_text("utf-8"))
    except FileNotFoundError:
        return False
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return any(isinstance(n, kinds) and n.name == name for n in tree.body)
