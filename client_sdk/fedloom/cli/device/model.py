"""`fedloom client model`: gets and exports the promoted model on a device."""

from pathlib import Path
from typing import Any

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import FILE, config_option, json_option, out_option

FORMATS = ("safetensors", "torchscript", "torch-export", "onnx")


@click.command()
@click.argument("code", metavar="[FILE.py:NAME|MODULE:NAME]", required=False)
@config_option
@click.option("--run", default="", help="Id or name of a run. Default: the latest promoted model.")
@click.option(
    "--offline", is_flag=True, help="Use the downloaded model; do not contact the server."
)
@click.option(
    "--file", "own", type=FILE, help="Use this safetensors file instead of the promoted model."
)
@click.option("--export", "kind", type=click.Choice(FORMATS), help="Export it in this format.")
@out_option("File for --export; replaced if it exists.")
@json_option
def model(  # noqa: PLR0917 - click passes them by name
    code: str | None,
    config: Path,
    run: str,
    offline: bool,
    own: Path | None,
    kind: str | None,
    out: Path | None,
) -> None:
    """Get the model that the operator promoted; export it.

    The model is downloaded once and checked against the server's signature and its digest; then it
    can be used offline. All formats except safetensors need the code of a client or a torch module.
    An exported file is loaded again and must give the same outputs as the module.

    \b
    Examples:
      fedloom client model
      fedloom client model --export safetensors --out model.safetensors
      fedloom client model my_client.py:client --export onnx --out model.onnx
    """
    from fedloom.client import Model  # noqa: PLC0415 - the operator's commands need no grpc
    from fedloom.protocol.errors import UsageError  # noqa: PLC0415

    if (kind is None) != (out is None):
        raise UsageError("Expected --export and --out together, got only one.")
    found = Model(path=own) if own else Model.latest(config, run=run, offline=offline)
    if kind is not None and out is not None:
        found.export(out, kind, _target(code))
    output.emit(_document(found, kind, out), lambda: _show(found, kind, out))


def _target(code: str | None) -> Any:
    if code is None:
        return None
    from fedloom.cli.common.load_code import called, find  # noqa: PLC0415 - it imports numpy
    from fedloom.client import Client  # noqa: PLC0415

    found = find(code)
    is_module = hasattr(found, "state_dict") and not isinstance(found, type)
    return found if isinstance(found, Client) or is_module else called(code, found)


def _document(found: Any, kind: str | None, out: Path | None) -> dict[str, Any]:
    promoted_at = found.promoted_at
    return {
        "file": str(found.path),
        "digest": found.digest or None,
        "run": found.run or None,
        "round": found.round if found.run else None,
        "promoted_at": None if promoted_at is None else promoted_at.timestamp(),
        "fresh": found.fresh,
        "export": None if out is None else {"format": kind, "file": str(out)},
    }


def _show(found: Any, kind: str | None, out: Path | None) -> None:
    if found.run:
        when = f"{found.promoted_at:%Y-%m-%d %H:%M} UTC"
        click.echo(f"The model of round {found.round} of {found.run}, promoted {when}")
        click.echo(f"  SHA-256  {found.digest}")
    click.echo(f"  file     {found.path} ({output.size(found.path.stat().st_size)})")
    if found.run and not found.fresh:
        click.echo("  The server was not contacted; there may be a newer model.")
    if out is not None:
        click.echo(f"  written  {out} ({output.size(out.stat().st_size)}, {kind})")
