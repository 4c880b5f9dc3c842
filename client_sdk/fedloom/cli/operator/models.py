"""`fedloom model`: initial models, and the models of runs."""

import json
from pathlib import Path

import click

from fedloom.cli.common import output
from fedloom.cli.common.lazy import LazyCommand, LazyGroup
from fedloom.cli.common.options import FILE, json_option, out_option, server_options
from fedloom.cli.connection.api_client import Control
from fedloom.cli.connection.default_run import digest_of
from fedloom.cli.operator.confirm import act, action_options, show_done
from fedloom.protocol.errors import UsageError

LAZY = {
    name: LazyCommand(f"fedloom.cli.operator.{target}", line)
    for name, target, line in (
        ("lineage", "model_inspection:lineage", "Show where a model comes from."),
        ("layers", "model_inspection:show_layers", "Show a model's tensors in numbers."),
        ("diff", "model_inspection:diff", "Show the difference between two models."),
        ("compare", "model_inspection:compare", "Compare the evaluations of models."),
        ("verify", "model_verify:verify", "Verify the signature of a model file."),
        ("promotions", "model_inspection:promotions", "List promotions, newest first."),
    )
}

round_option = click.option(
    "--round", "number", type=int, help="Use the model that this round committed."
)
best_option = click.option(
    "--best", is_flag=True, help="Use the run's best model, by the [best] table of its run.toml."
)


@click.group(cls=LazyGroup, lazy=LAZY, order=("init", "upload", "list"))
def model() -> None:
    """Create, list, compare, export and promote models, as safetensors.

    Name a model by its digest, a prefix of it, or its run.
    """


@model.command("list")
@click.argument("run", required=False)
@server_options
def list_models(run: str | None, directory: Path) -> None:
    """List the models of RUN, or of all runs, oldest first. Round 0 is the initial model.

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
            "best" if m["best"] else "",
        )
        for m in found["models"]
    )
    columns = ("DIGEST", "RUN", ">ROUND", ">SIZE", "CREATED", "MARK")
    empty = "No models yet. Submit a run with `fedloom run submit`."
    output.emit_table(found, columns, rows, empty)


@model.command()
@click.argument("code", metavar="FILE.py:NAME|MODULE:NAME")
@out_option("File to write; replaced if it exists.", required=True)
@click.option(
    "--flower",
    is_flag=True,
    help="NAME is from a Flower app: a torch module, an ArrayRecord or a list of arrays.",
)
@click.option(
    "--adapter-rest",
    is_flag=True,
    help="Add a tensor of zeros for each low-rank adapter: the difference to its frozen weight.",
)
@json_option
def init(code: str, out: Path, *, flower: bool, adapter_rest: bool) -> None:
    """Write the initial model of a run from a client's code.

    NAME is a client with `initial`, such as those of fedloom.client.torch and sklearn, a dict of
    arrays by name, or a class or function without arguments that returns one of these.

    \b
    Example:
      fedloom model init my_client.py:client --out init.safetensors
      fedloom model init --flower quickstart.task:Net --out init.safetensors
      fedloom run submit run.toml --model init.safetensors
    """
    from fedloom.cli.common.load_code import initial_model, initial_of_flower  # noqa: PLC0415 - it imports numpy
    from fedloom.client import save_file  # noqa: PLC0415

    params = initial_of_flower(code) if flower else initial_model(code)
    if not params:
        raise UsageError(f"Expected a model with tensors, got none from {code}.")
    if adapter_rest:
        from fedloom.strategies.adapters.settings import with_rests  # noqa: PLC0415 - it imports numpy

        try:
            params = with_rests(params)
        except ValueError as error:
            raise UsageError(str(error)) from None
    save_file(params, out)
    shown = {
        name: {"shape": list(array.shape), "dtype": str(array.dtype)}
        for name, array in params.items()
    }
    values = sum(array.size for array in params.values())
    output.emit_text(
        {"file": str(out), "tensors": shown},
        f"{out}: {len(params)} tensors, {values:,} values in total",
    )


@model.command()
@click.argument("file", type=FILE)
@server_options
def upload(file: Path, directory: Path) -> None:
    """Upload a model to the server, so that runs can start from its digest.

    \b
    Example:
      fedloom model upload init.safetensors
    """
    with file.open("rb") as body:
        stored = Control(directory).upload("models", file=body, size_bytes=file.stat().st_size)
    tensors = f"{stored['num_tensors']} tensors, {stored['num_values']:,} values in total"
    output.emit_text(stored, f"{stored['digest']}\n{tensors}")


@model.command()
@click.argument("which", metavar="[RUN|DIGEST]", required=False)
@out_option("File to write; replaced if it exists.")
@click.option(
    "--peft",
    "folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Folder with adapter_config.json: write the adapters for PeftModel.from_pretrained there.",
)
@round_option
@best_option
@out_option(
    "Also write the federation's signed statement: digest, run and round, as JSON.", "--signature"
)
@server_options
def export(  # noqa: PLR0917 - click passes them by name
    which: str | None,
    out: Path | None,
    folder: Path | None,
    number: int | None,
    best: bool,
    signature: Path | None,
    directory: Path,
) -> None:
    """Write a model to a safetensors file, verified against its digest.

    Default: the newest run's newest model.

    \b
    Examples:
      fedloom model export --out model.safetensors
      fedloom model export digits --round 5 --out round5.safetensors
      fedloom model download digits --best --out best.safetensors --signature best.json
      fedloom model export chat --peft adapter
    """
    if (out is None) == (folder is None):
        raise click.UsageError("Expected either --out FILE or --peft DIR.")
    control = Control(directory)
    wanted = digest_of(control, which, number, best=best)
    if folder is not None:
        out, digest, size_bytes = _adapters(control, wanted, folder)
    else:
        assert out is not None
        digest, size_bytes = control.download("models", wanted, out=out)
    document = {"digest": digest, "size_bytes": size_bytes, "file": str(out)}
    text = f"{out}: {output.size(size_bytes)}, SHA-256 {digest}"
    if signature is not None:
        signed = control.get("models", digest, "signature")
        signature.write_text(json.dumps(signed, indent=2) + "\n")
        document["signature"] = str(signature)
        text += f"\n{signature}: signed by {signed['fingerprint']}"
    output.emit_text(document, text)


def _adapters(control: Control, wanted: str, folder: Path) -> tuple[Path, str, int]:
    """Write a model as the adapters of a folder, if they are those of its configuration."""
    from fedloom.cli.operator import peft_folder  # noqa: PLC0415 - it imports numpy

    config = peft_folder.read_config(folder)
    out, new = folder / peft_folder.ADAPTERS, folder / f".{peft_folder.ADAPTERS}.new"
    try:
        digest, size_bytes = control.download("models", wanted, out=new)
        peft_folder.check(config, new)
        new.replace(out)
    finally:
        new.unlink(missing_ok=True)
    return out, digest, size_bytes


model.add_command(click.Command("download", callback=export.callback, params=export.params,
                                help=export.help, short_help="The same as export."))  # fmt: skip


@model.command()
@click.argument("which", metavar="RUN|DIGEST")
@round_option
@best_option
@click.option("--note", default="", help="A comment, shown in the list of promotions.")
@action_options
@server_options
def promote(which: str, number: int | None, *, best: bool, note: str, directory: Path) -> None:
    """Promote a model: devices that request the promoted model get this one.

    \b
    Example:
      fedloom model promote digits --best
      fedloom model promote digits --round 5 --note "best on the hold-out"
    """
    control = Control(directory)
    digest = digest_of(control, which, number, best=best)
    show_done(act(control, "models", digest, "promote", body={"note": note}))


@model.command()
@click.argument("run")
@click.argument("number", metavar="ROUND", type=int)
@action_options
@server_options
def rollback(run: str, number: int, directory: Path) -> None:
    """Continue RUN from the model and the state of an earlier ROUND; 0 is the initial model.

    The open round is dropped and later rounds are undone. The privacy budget they spent stays
    spent.

    \b
    Example:
      fedloom model rollback digits 5 --preview
    """
    show_done(act(Control(directory), "runs", run, "rollback", body={"round": number}))
