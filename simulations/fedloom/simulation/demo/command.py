"""`fedloom demo`: a complete federation on one machine."""

from pathlib import Path

import click

from fedloom.cli.common.lazy import load
from fedloom.protocol.errors import UsageError

TARGET = 0.02
"""Largest accuracy loss against centralised training that counts as a success."""


@click.command()
@click.option("--data", type=click.Choice(["digits", "mnist"]), default="digits", show_default=True)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of MNIST's four IDX files, gzipped or not; with --data mnist.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/demo"),
    show_default=True,
    help="Folder for state, logs, the model and the picture; emptied first.",
)
@click.option("--rounds", type=click.IntRange(1), help="Rounds, instead of the data set's default.")
@click.option(
    "--keep", is_flag=True, help="Keep the server running at the end, to view its console."
)
@click.option(
    "--masked", is_flag=True, help="Hide each update: the server learns the sum of all, no more."
)
def demo(
    data: str, data_dir: Path | None, out: Path, rounds: int | None, *, keep: bool, masked: bool
) -> None:
    """Run a federation on this machine: a server, eight client processes, one model.

    Each client has its own skewed shard of the data. The federated model is compared with one
    trained on all data, and with models trained by each client alone.

    \b
    Examples:
      fedloom demo
      fedloom demo --masked
      fedloom demo --data mnist --data-dir ~/mnist
    """
    from dataclasses import replace  # noqa: PLC0415 - not needed for --help

    from rich.console import Console  # noqa: PLC0415

    load("fedloom.simulation.demo.play:play")  # names a missing extra
    from fedloom.simulation.demo import play  # noqa: PLC0415
    from fedloom.simulation.demo import settings as known  # noqa: PLC0415
    from fedloom.simulation.demo.data import population  # noqa: PLC0415

    if (data == "mnist") != (data_dir is not None):
        raise UsageError(
            "--data mnist needs --data-dir, the folder of MNIST's IDX files; other data do not "
            "take it."
        )
    settings = replace(known.MNIST if data == "mnist" else known.DIGITS, masked=masked)
    if rounds is not None:
        settings = replace(settings, rounds=rounds)
    play.play(population(settings, data_dir), settings, out.resolve(), Console(), keep=keep)
