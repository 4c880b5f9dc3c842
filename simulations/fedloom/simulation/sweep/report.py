"""The output of a sweep: `trials.csv`, `best.toml`, plots, and the table on the terminal."""

import json
from pathlib import Path

import click

from fedloom.cli.common.output import show as show_rich
from fedloom.simulation.sweep import table
from fedloom.simulation.sweep.outcome import SweepResult
from fedloom.simulation.sweep.pictures.draw import draw_all


def write(outcome: SweepResult) -> list[Path]:
    """Write the files of the sweep's folder and return their paths."""
    if not outcome.rows:
        return []
    files = [outcome.folder / "trials.csv"]
    table.write_csv(outcome, files[0])
    means = outcome.folder / "settings.csv"
    if outcome.sweep.repeats > 1:
        files.append(means)
        table.write_means(outcome, means)
    else:  # of more seeds before
        means.unlink(missing_ok=True)
    if best := table.best_toml(outcome):
        files.append(outcome.folder / "best.toml")
        files[-1].write_text(best, "utf-8")
    return files + draw_all(outcome)


def show(outcome: SweepResult, files: list[Path], *, as_json: bool) -> None:
    """Print the outcome: the table, the best settings, the files."""
    if as_json:
        click.echo(json.dumps(table.document(outcome), indent=2, ensure_ascii=False))
        return
    if not outcome.rows:
        return
    click.echo()
    show_rich(table.trials_table(outcome))
    if note := table.deviation_note(outcome.sweep.repeats):
        click.echo(note)
    if (more := len(outcome.ranking) - table.MOST) > 0:
        click.echo(f"… and {more} more in trials.csv")
    if outcome.best is not None:
        value = table.value_text(outcome.sweep, outcome.best)
        title = outcome.sweep.objective.title
        click.echo(f"\nbest: trial {outcome.best.trial}, {title}: {value}\n")
        click.echo(table.best_toml(outcome))
    click.echo(f"{outcome.folder}: {', '.join(path.name for path in files)}")
