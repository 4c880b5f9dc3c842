"""`fedloom client test`: checks a client locally, and runs a few rounds with it."""

import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import FILE, json_option

if TYPE_CHECKING:
    from fedloom.cli.device.activity import Activity

NOT_OF_FLOWER = ("stop", "copies")
"""Checks that no Flower app can pass: it cannot ask whether to stop, and is not simulated here."""


@click.command("test")
@click.argument("code", metavar="FILE.py:NAME|MODULE:NAME", required=False, default="")
@click.option(
    "--flower", default="", metavar="FILE.py:APP|MODULE:APP", help="Check a Flower ClientApp."
)
@click.option(
    "--node",
    "node_config",
    multiple=True,
    metavar="KEY=VALUE",
    help="Entry of the Flower app's node_config, such as partition-id=0; repeatable.",
)
@click.option(
    "--model", type=FILE, metavar="FILE", help="Initial model. Default: the client's `initial`."
)
@click.option(
    "--run",
    "tables",
    type=FILE,
    metavar="RUN.toml",
    help="Settings as for `fedloom run submit`. Default: FedAvg, one epoch.",
)
@click.option("--rounds", type=click.IntRange(min=0), default=3, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--ignore", multiple=True, metavar="CHECK", help="Skip a check; repeatable.")
@json_option
def test(  # noqa: PLR0917 - click passes them by name
    code: str,
    flower: str,
    node_config: tuple[str, ...],
    model: Path | None,
    tables: Path | None,
    rounds: int,
    threads: int,
    ignore: tuple[str, ...],
) -> None:
    """Check a client locally, without a server, and run a few rounds with it alone.

    Prints each fault with its remedy. Exits with 1 if there is a fault.

    \b
    Examples:
      fedloom client test my_client.py:client
      fedloom client test my_client.py:client --run run.toml --model init.safetensors
      fedloom client test --flower quickstart.client_app:app --model init.safetensors
    """
    if bool(code) == bool(flower):
        raise click.UsageError("Expected either FILE.py:NAME|MODULE:NAME or --flower.")
    from fedloom.cli.device.activity import Activity  # noqa: PLC0415 - not needed for --help
    from fedloom.client.testing import Run, check  # noqa: PLC0415
    from fedloom.protocol.settings import toml, within  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as state:
        client = _load(code, flower, node_config, Path(state))
        with within(tables) if tables else nullcontext():
            run = Run.of({} if tables is None else toml.read(tables, "a run's settings"))
        skipped = (*ignore, *NOT_OF_FLOWER) if flower else ignore
        with Activity() as activity:
            found = check(client, model, run=run, threads=threads, ignore=skipped, on_step=activity)
            faults = [finding for finding in found if finding.weight == "fault"]
            played = (
                None
                if faults or not rounds or not client.can_train()
                else _play(client, model, run, rounds, activity)
            )
    output.emit(
        {
            "findings": [
                {"check": f.check, "weight": f.weight, "sentence": f.sentence} for f in found
            ],
            "rounds": None if played is None else played["rounds"],
        },
        lambda: _show(found, played),
    )
    if faults:
        click.get_current_context().exit(1)


def _load(code: str, flower: str, node_config: tuple[str, ...], state: Path) -> Any:
    from fedloom.cli.common import load_code  # noqa: PLC0415 - it imports numpy

    if not flower:
        if node_config:
            raise click.UsageError("Expected --node with --flower.")
        return load_code.load_client(code)
    if unfit := [entry for entry in node_config if "=" not in entry]:
        raise click.UsageError(f"Expected --node KEY=VALUE, got {unfit[0]!r}.")
    from fedloom.client import flower as apps  # noqa: PLC0415

    node = dict(entry.split("=", 1) for entry in node_config)
    return apps.load(flower, load_code.find, state, node)


def _play(
    client: Any, model: Path | None, run: Any, number: int, activity: "Activity"
) -> dict[str, Any]:
    from fedloom.client.testing import rounds  # noqa: PLC0415 - as above
    from fedloom.protocol.user_code import loading  # noqa: PLC0415

    begun = time.monotonic()
    with loading("the client"):
        played = rounds(client, model, num_rounds=number, run=run, on_step=activity)
    results = [
        {
            "number": r.number,
            "training": dict(r.training),
            "evaluation": dict(r.evaluation),
            "update_bytes": r.update_bytes,
        }
        for r in played.rounds
    ]
    return {"rounds": results, "seconds": time.monotonic() - begun}


def _show(found: Any, played: dict[str, Any] | None) -> None:
    for finding in found:
        mark = click.style("✗", fg="red") if finding.weight == "fault" else "·"
        click.echo(f"{mark} {finding.check}: {finding.sentence}")
    faults = sum(finding.weight == "fault" for finding in found)
    if faults:
        click.echo(f"{faults} {'fault' if faults == 1 else 'faults'} to fix.")
        return
    click.echo(click.style("✓", fg="green") + " No fault found.")
    if played is None:
        return
    for row in played["rounds"]:
        parts = [
            f"{what} {' '.join(f'{n} {output.four_digits(v)}' for n, v in row[what].items())}"
            for what in ("training", "evaluation")
            if row[what]
        ]
        click.echo(f"  round {row['number']}: " + " · ".join(parts))
    size, duration = played["rounds"][-1]["update_bytes"], output.duration(played["seconds"])
    click.echo(f"{len(played['rounds'])} rounds in {duration}, {output.size(size)} per update.")
