"""`fedloom demo`: a federation on one machine, from end to end."""

from pathlib import Path

import click

from fedloom.cli.common.lazy import load
from fedloom.protocol.errors import UsageError

TARGET = 0.02
"""Largest distance below centralised training, in accuracy, that the demo calls a success."""


@click.command()
@click.option("--data", type=click.Choice(["digits", "mnist"]), default="digits", show_default=True)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="The four IDX files of MNIST, packed or not; with --data mnist.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/demo"),
    show_default=True,
    help="Emptied, then holds the server's state, logs, the model and the picture.",
)
@click.option("--rounds", type=click.IntRange(1), help="Fewer or more than the data set's own.")
@click.option(
    "--keep", is_flag=True, help="Leave the server running at the end, to view its console."
)
def demo(data: str, data_dir: Path | None, out: Path, rounds: int | None, keep: bool) -> None:
    """Run a federation here: a server, eight clients as processes, one model.

    Each client holds its own skewed shard of the data. The model that they train together is
    compared with one trained on all data in one place, and with what each client has alone.

    \b
    Examples:
      fedloom demo
      fedloom demo --data mnist --data-dir ~/mnist
    """
    from dataclasses import replace  # noqa: PLC0415 - help needs none of this

    from rich.console import Console  # noqa: PLC0415

    load("fedloom.simulation.demo.play:play")  # names the extra that is missing, if one is
    from fedloom.simulation.demo import play  # noqa: PLC0415
    from fedloom.simulation.demo import settings as known  # noqa: PLC0415
    from fedloom.simulation.demo.data import population  # noqa: PLC0415

    if (data == "mnist") != (data_dir is not None):
        raise UsageError(
            "--data-dir, the folder of MNIST's IDX files, goes with --data mnist, and only there."
        )
    settings = known.MNIST if data == "mnist" else known.DIGITS
    if rounds is not None:
        settings = replace(settings, rounds=rounds)
    play.play(population(settings, data_dir), settings, out.resolve(), Console(), keep=keep)
