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

from fedloom.protocol.settings.declared import Setting as Setting
from fedloom.protocol.settings.declared import build as build
from fedloom.protocol.settings.declared import declared as declared
from fedloom.protocol.settings.declared import from_environment as from_environment
from fedloom.protocol.settings.declared import from_table as from_table
from fedloom.protocol.settings.declared import markdown as markdown
from fedloom.protocol.settings.declared import setting as setting
from fedloom.protocol.settings.declared import template as template
from fedloom.protocol.settings.declared import value_of as value_of
from fedloom.protocol.settings.dotted import dotted as dotted
from fedloom.protocol.settings.dotted import merged as merged
from fedloom.protocol.settings.tables import call as call
from fedloom.protocol.settings.tables import check_call as check_call
from fedloom.protocol.settings.tables import check_names as check_names
from fedloom.protocol.settings.tables import checked as checked
from fedloom.protocol.settings.tables import lookup as lookup
from fedloom.protocol.settings.tables import named as named
from fedloom.protocol.settings.tables import subtable as subtable
from fedloom.protocol.settings.tables import typed as typed
from fedloom.protocol.settings.tables import usage_errors as usage_errors
from fedloom.protocol.settings.tables import within as within
