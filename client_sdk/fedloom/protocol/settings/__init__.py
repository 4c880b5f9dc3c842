"""The one reader of settings: client.toml, server.toml, run.toml, policy.toml, experiments, sweeps.

A file's settings are declared as a dataclass (`declared`), or are arguments of functions and
dataclasses chosen by name (`tables`). Both refuse unknown names and wrong types at any level.

    @dataclass(frozen=True, kw_only=True)
    class Disk:
        limit_mb: float = setting(100.0, doc="largest size, MB", least=1)

    document = toml.read(Path("disk.toml"), "settings")
    with within("disk.toml"):
        disk = build(Disk, from_table(Disk, document))
"""

from fedloom.protocol.settings.declared import (
    Setting,
    build,
    declared,
    from_environment,
    from_table,
    markdown,
    setting,
    template,
    value_of,
)
from fedloom.protocol.settings.dotted import dotted, merged
from fedloom.protocol.settings.tables import (
    call,
    check_call,
    check_names,
    checked,
    lookup,
    named,
    subtable,
    typed,
    usage_errors,
    within,
)

__all__ = [
    "Setting",
    "build",
    "call",
    "check_call",
    "check_names",
    "checked",
    "declared",
    "dotted",
    "from_environment",
    "from_table",
    "lookup",
    "markdown",
    "merged",
    "named",
    "setting",
    "subtable",
    "template",
    "typed",
    "usage_errors",
    "value_of",
    "within",
]
