"""`fedloom model`: initial models of runs, and the models that runs made."""

import json
from pathlib import Path

import click

from fedloom.cli.common import output
from fedloom.cli.common.lazy import LazyCommand, LazyGroup
from fedloom.cli.common.options import directory_option, json_option
from fedloom.cli.connection.api_client import Control
from fedloom.cli.connection.default_run import digest_of
from fedloom.cli.operator.confirm import act, action_options, show_done

LAZY = {
    "lineage": LazyCommand(
        "fedloom.cli.operator.model_inspection:lineage", "Show where a model comes from."
    ),
    "layers": LazyCommand(
        "fedloom.cli.operator.model_inspection:show_layers", "Show a model's tensors in numbers."
    ),
    "diff": LazyCommand(
        "fedloom.cli.operator.model_inspection:diff", "Show what lies between two models."
    ),
    "compare": LazyCommand(
        "fedloom.cli.operator.model_inspection:compare", "Compare the evaluations of models."
    ),
    "verify": LazyCommand(
        "fedloom.cli.operator.model_verify:verify",
        "Verify the signature of a model file.",
    ),
    "promotions": LazyCommand(
        "fedloom.cli.operator.model_inspection:promotions", "List promotions, newest first."
    ),
}


class ModelCommands(LazyGroup):
    """Lists init, upload and list first."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command in that order."""
        names = super().list_commands(ctx)
        first = [name for name in ("init", "upload", "list") if name in names]
        return first + [name for name in names if name not in first]


@click.group(cls=ModelCommands, lazy=LAZY)
def model() -> None:
    """Create, list, compare, export and promote models, as safetensors.

    Models are named by their digest, a prefix of it, or the run that made them.
    """


@model.command("list")
@click.argument("run", required=False)
@directory_option
@json_option
def list_models(run: str | None, directory: Path) -> None:
    """List models, oldest first: of one RUN, or of all. Round 0 is the initial model.

    \b
    Example:
      fedloom model list digits
    """
    control, wanted = Control(directory), {"run": run} if run else {}
    found = control.get("models", **wanted)
    while (before := found.pop("more", None)) is not None:
        page = control.get("models", before=before, **wanted)
        found = {"models": page["models"] + found["models"], "more": page["more"]}
    rows = (
        (
            m["digest"][:12],
            output.escape(m["run"]),
            str(m["round"]),
            output.size(m["size_bytes"]),
            output.moment(m["created_at"]),
        )
        for m in found["models"]
    )
    output.emit(
        found,
        lambda: output.print_table(
            ("DIGEST", "RUN", ">ROUND", ">SIZE", "MADE"),
            rows,
            "No models yet: submit a run with `fedloom run submit`.",
        ),
    )


@model.command()
@click.argument("code", metavar="FILE.py:NAME|MODULE:NAME")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="Where to write it; replaced if it exists.",
)
@click.option(
    "--flower",
    is_flag=True,
    help="NAME is from a Flower app: a torch module, an ArrayRecord or a list of arrays.",
)
@json_option
def init(code: str, out: Path, *, flower: bool) -> None:
    """Write the initial model of a run, from the code of a client.

    NAME is a client with `initial`, such as those of fedloom.client.torch and sklearn, or a dict of
    arrays by name, or a class or function that returns one of these without arguments.

    \b
    Example:
      fedloom model init my_client.py:client --out init.safetensors
      fedloom model init --flower quickstart.task:Net --out init.safetensors
      fedloom run submit run.toml --model init.safetensors
    """
    from fedloom.cli.common.load_code import (  # noqa: PLC0415 - it imports people's code
        initial_model,
        initial_of_flower,
    )
    from fedloom.client import save_file  # noqa: PLC0415

    params = initial_of_flower(code) if flower else initial_model(code)
    save_file(params, out)
    shown = {
        name: {"shape": list(array.shape), "dtype": str(array.dtype)}
        for name, array in params.items()
    }
    values = sum(array.size for array in params.values())
    output.emit(
        {"file": str(out), "tensors": shown},
        lambda: click.echo(f"{len(params)} tensors of {values:,} values in all: {out}"),
    )


@model.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@directory_option
@json_option
def upload(file: Path, directory: Path) -> None:
    """Upload a model to the server, so that runs can start from its digest.

    \b
    Example:
      fedloom model upload init.safetensors
    """
    with file.open("rb") as body:
        stored = Control(directory).upload("models", file=body, size_bytes=file.stat().st_size)
    output.emit(
        stored,
        lambda: click.echo(f"{stored['digest']}\n{stored['num_tensors']} tensors of "
                           f"{stored['num_values']:,} values in all."),
    )  # fmt: skip


@model.command()
@click.argument("which", metavar="[RUN|DIGEST]", required=False)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="Where to write it; replaced if it exists.",
)
@click.option("--round", "number", type=int, help="The model that this round committed.")
@click.option(
    "--signature",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write the federation's signed statement: digest, run and round, as JSON.",
)
@directory_option
@json_option
def export(
    which: str | None, out: Path, number: int | None, signature: Path | None, directory: Path
) -> None:
    """Write a model to a file, verified against its digest.

    A run's newest model, or that of one of its rounds, or any model by its digest. Default: the
    newest run's. Any safetensors library reads the file.

    \b
    Examples:
      fedloom model export --out model.safetensors
      fedloom model export digits --round 5 --out round5.safetensors
      fedloom model download digits --out best.safetensors --signature best.json
    """
    control = Control(directory)
    digest, size_bytes = control.download("models", digest_of(control, which, number), out=out)
    document = {"digest": digest, "size_bytes": size_bytes, "file": str(out)}
    told = f"{out}: {output.size(size_bytes)}, SHA-256 {digest}"
    if signature is not None:
        signed = control.get("models", digest, "signature")
        signature.write_text(json.dumps(signed, indent=2) + "\n")
        document["signature"] = str(signature)
        told += f"\n{signature}: signed by {signed['fingerprint']}"
    output.emit(document, lambda: click.echo(told))


model.add_command(click.Command("download", callback=export.callback, params=export.params,
                                help=export.help, short_help="The same as export."))  # fmt: skip


@model.command()
@click.argument("which", metavar="RUN|DIGEST")
@click.option("--round", "number", type=int, help="The model that this round committed.")
@click.option("--note", default="", help="For people.")
@action_options
@directory_option
@json_option
def promote(which: str, number: int | None, note: str, directory: Path) -> None:
    """Promote a model: clients that request the promoted model get it.

    A run's newest model, or that of one of its rounds, or any model by its digest.

    \b
    Example:
      fedloom model promote digits --round 5 --note "best on the hold-out"
    """
    control = Control(directory)
    digest = digest_of(control, which, number)
    show_done(act(control, "models", digest, "promote", body={"note": note}))


@model.command()
@click.argument("run")
@click.argument("number", metavar="ROUND", type=int)
@action_options
@directory_option
@json_option
def rollback(run: str, number: int, directory: Path) -> None:
    """Continue RUN from the model and the state of an earlier ROUND; 0 is its beginning.

    The open round is dropped and later rounds are undone. Privacy that was spent stays spent.

    \b
    Example:
      fedloom model rollback digits 5 --preview
    """
    show_done(act(Control(directory), "runs", run, "rollback", body={"round": number}))
