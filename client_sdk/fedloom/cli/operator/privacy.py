"""`fedloom privacy`: what clients have spent over all private runs, and budgets."""

import csv
import io
from pathlib import Path
from typing import Any

import click

from fedloom.cli.common import output
from fedloom.cli.common.lazy import LazyGroup
from fedloom.cli.common.options import F, server_options
from fedloom.cli.connection.api_client import Control
from fedloom.cli.operator.confirm import act, action_options, show_done
from fedloom.protocol.atomic_files import write_whole

_EVERYBODY = "all clients"
_COLUMNS = ("client", "delta", "spent", "reserved", "relation", "runs", "public")
_label_option = click.option(
    "--label", default="", metavar="NAME[=VALUE]", help="Clients with this label of operators."
)


@click.group(cls=LazyGroup)
def privacy() -> None:
    """Show what clients have spent over all private runs, and limit it by budgets.

    Mechanisms are composed; epsilons do not add up. "Reserved" is what a client will have spent
    when all active runs have ended.
    """


def _delta_option(function: F) -> F:
    return click.option(
        "--delta",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        help="Of the figures. Default: the budget's, or the smallest of the runs'.",
    )(function)


@privacy.command("list")
@_label_option
@_delta_option
@server_options
def list_populations(directory: Path, label: str, delta: float | None) -> None:
    """List what all clients, those of each budget and those of a label have spent; and the runs.

    The figures are those of the client that spent most.

    \b
    Examples:
      fedloom privacy list
      fedloom privacy list --label site=north --delta 1e-6
    """
    found = Control(directory).get("privacy", **_query(label=label, delta=delta))
    output.emit(found, lambda: _show(found))


def _show(found: dict[str, Any]) -> None:
    rows = [
        (
            output.escape(p["label"] or _EVERYBODY),
            output.or_dash(p["budget"], lambda budget: f"{budget['epsilon']:g}"),
            f"{p['delta']:g}",
            _figure(p["spent"]),
            _figure(p["reserved"]),
            output.or_dash(p["left"], output.four_digits),
            str(p["clients"]),
            str(p["over"]),
            str(p["public"]),
            output.escape(p["worst"] or "-"),
            p["relation"],
        )
        for p in found["populations"]
    ]
    columns = (
        "CLIENTS OF", ">BUDGET", ">DELTA", ">SPENT", ">RESERVED", ">LEFT", ">CLIENTS", ">OVER",
        ">IN PUBLIC RUNS", "SPENT MOST", "RELATION",
    )  # fmt: skip
    output.print_table(columns, rows, "")
    if found["runs"]:
        click.echo()
        _show_runs(found["runs"])


def _show_runs(runs: list[dict[str, Any]]) -> None:
    rows = (
        (
            run["run"],
            output.state(run["state"]),
            run["mechanism"] or "without \\[privacy]",
            f"{run['rounds']} of {run['planned']}",
            _figure(run["epsilon"]) if run["private"] else "-",
            str(run["clients"]) if run["clients"] else "-",
            str(run["barred"]) if run["barred"] else "-",
        )
        for run in runs
    )
    columns = ("RUN", "STATE", "MECHANISM", ">ROUNDS", ">EPSILON ALONE", ">CLIENTS", ">BARRED")
    output.print_table(columns, rows, "No run yet.")


@privacy.command()
@_label_option
@_delta_option
@click.option(
    "--csv",
    "csv_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a CSV file instead of a table.",
)
@server_options
def clients(directory: Path, label: str, delta: float | None, csv_path: Path | None) -> None:
    """List what each client has spent, by name.

    \b
    Examples:
      fedloom privacy clients --label site=north
      fedloom privacy clients --csv spent.csv
    """
    found = Control(directory).get_all(
        "privacy", "clients", key="clients", page="after", **_query(label=label, delta=delta)
    )
    if csv_path is not None:
        write_whole(csv_path, _as_csv(found["clients"]))
        output.emit_text(found, f"Wrote {len(found['clients'])} clients to {csv_path}.")
        return
    rows = (
        (
            output.escape(c["client"]),
            _figure(c["spent"]),
            _figure(c["reserved"]),
            f"{c['delta']:g}",
            str(c["runs"]),
            str(c["public"]),
            c["relation"],
        )
        for c in found["clients"]
    )
    columns = (
        "CLIENT", ">SPENT", ">RESERVED", ">DELTA", ">PRIVATE RUNS", ">PUBLIC RUNS", "RELATION",
    )  # fmt: skip
    output.emit_table(found, columns, rows, "No client was in a run yet.")


def _as_csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        # No bound is known: an empty cell would read as nothing spent.
        writer.writerow({name: "inf" if row[name] is None else row[name] for name in _COLUMNS})
    return text.getvalue()


@privacy.command()
@click.argument("name")
@_delta_option
@server_options
def client(directory: Path, name: str, delta: float | None) -> None:
    """Show what one client has spent, and in which runs.

    \b
    Example:
      fedloom privacy client ward-3
    """
    found = Control(directory).get("privacy", "clients", name, **_query(delta=delta))
    output.emit(found, lambda: _show_client(found))


def _show_client(found: dict[str, Any]) -> None:
    click.echo(
        f"{found['client']} has spent epsilon {_figure(found['spent'])} at delta "
        f"{found['delta']:g} ({found['relation']}), with what active runs reserve "
        f"{_figure(found['reserved'])}."
    )
    if found["public"]:
        click.echo(f"Not counted: runs without [privacy], which have no bound: {found['public']}.")
    if found["in_runs"]:
        click.echo()
        _show_runs(found["in_runs"])


@privacy.command("set-budget")
@click.argument("epsilon", type=click.FloatRange(0, min_open=True))
@click.option(
    "--delta",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    required=True,
    help="At which epsilon is computed; below 1 / number of clients.",
)
@_label_option
@click.option(
    "--allow-public",
    is_flag=True,
    help="Let runs without [privacy] draw these clients; what those reveal is not counted.",
)
@action_options
@server_options
def set_budget(
    directory: Path, epsilon: float, delta: float, label: str, allow_public: bool
) -> None:
    """Set the most that each client may spend over all runs: of a label, or of all clients.

    Runs that would exceed it for a client that they could draw are refused. Needs the scope admin.

    \b
    Examples:
      fedloom privacy set-budget 8 --delta 1e-6
      fedloom privacy set-budget 2 --delta 1e-6 --label site=north
    """
    body = {"label": label, "epsilon": epsilon, "delta": delta, "allow_public": allow_public}
    show_done(act(Control(directory), "privacy", "budgets", body=body))


@privacy.command("remove-budget")
@_label_option
@action_options
@server_options
def remove_budget(directory: Path, label: str) -> None:
    """Remove a budget; the ledger keeps what clients have spent. Needs the scope admin.

    \b
    Example:
      fedloom privacy remove-budget --label site=north
    """
    show_done(act(Control(directory), "privacy", "budgets", "remove", body={"label": label}))


def _query(**wanted: str | float | None) -> dict[str, Any]:
    return {name: value for name, value in wanted.items() if value not in (None, "")}


def _figure(epsilon: float | None) -> str:
    return "unbounded" if epsilon is None else output.four_digits(epsilon)
