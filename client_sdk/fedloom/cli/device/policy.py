"""`fedloom client policy`: checks the policy of the device's owner."""

from dataclasses import asdict
from pathlib import Path

import click

from fedloom.cli.common.lazy import LazyGroup
from fedloom.cli.common.options import config_option, json_option
from fedloom.cli.common.output import emit


@click.group(cls=LazyGroup)
def policy() -> None:
    """Check the policy of this device's owner: which runs it joins, and which data it may send.

    The policy is the file policy.toml beside client.toml; its comments explain each setting.
    """


@policy.command()
@config_option
@json_option
def check(config: Path) -> None:
    """Check policy.toml and explain it in plain language.

    \b
    Example:
      fedloom client policy check --config /etc/fedloom/client.toml
    """
    from fedloom.client.config import load  # noqa: PLC0415 - help needs none of it
    from fedloom.client.owner.policy import PolicyFile, words  # noqa: PLC0415

    path = load(config).policy
    found = PolicyFile(path).current()
    document = {
        "file": None if path is None else str(path),
        "policy": asdict(found),
        "means": words(found),
    }
    where = f"By {path}, this device" if path else "There is no policy.toml, so this device"
    emit(
        document, lambda: click.echo("\n".join((f"{where}:", *(f"  - {s}" for s in words(found)))))
    )
