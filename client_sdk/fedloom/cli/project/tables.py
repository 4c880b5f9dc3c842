"""The table of a new folder: a user's CSV file or the invented one, decided and split."""

from pathlib import Path

from fedloom.cli.project import examples, split
from fedloom.cli.project.decide import decide
from fedloom.cli.project.folder import table_files
from fedloom.client.data.columns import TableColumns, TextTable, read_rows
from fedloom.protocol.errors import UsageError

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_EXAMPLE_SITE = "site"


def decided(
    file: Path | None, *, label: str | None, predict: str | None, by: str | None, clients: int
) -> tuple[TableColumns, list[str], dict[str, str]]:
    """Read a table, decide what its columns are, and split it over clients.

    Args:
        file: of the table; None for invented data.
        label: see `decide`.
        predict: see `decide`.
        by: column of sites; None to deal the rows.
        clients: number of clients without `by`.

    Returns:
        The columns, what was decided, and the files of `table_files`.

    Raises:
        UsageError: the table cannot be used; names line and column.
    """
    table, separator = (examples.machines(), ",") if file is None else _read(file)
    by = _EXAMPLE_SITE if file is None else by
    shown = "the invented data" if file is None else str(file)
    out = () if by is None else (by,)
    found = decide(table, shown, separator=separator, label=label, predict=predict, leave_out=out)
    if by is None:
        sites = split.evenly(found.rows, clients)
    else:
        sites = split.by_site(found.rows, table.names.index(by), by)
    sizes = ", ".join(f"{site} {len(rows):,}" for site, rows in sites.items())
    how = "dealt" if by is None else f"by {by}"
    first = "data      invented readings of machines; --csv FILE takes yours"
    if file is not None:
        first = (
            f"data      {len(table.rows):,} rows of {file}, cells between {SEPARATORS[separator]}"
        )
    notes = [first, *found.notes, f"clients   {sizes} rows ({how})"]
    if file is not None:
        notes.append("Correct columns.toml if this is wrong, or use --label and --predict.")
    return found.columns, notes, table_files(found.columns, table.names, sites)


def _read(file: Path) -> tuple[TextTable, str]:
    """Read a table whose separator is the one that gives its first line the most cells.

    Raises:
        UsageError: it is no table, or has one column only.
    """
    try:
        with file.open(encoding="utf-8-sig", errors="replace") as opened:
            first = opened.readline(1 << 20)
    except OSError as error:
        raise UsageError(f"Expected a CSV file at {file}, got: {error.strerror}.") from None
    separator = max(SEPARATORS, key=first.count)
    if separator not in first:
        raise UsageError(
            f"Expected two or more columns in {file}, with commas, semicolons, tabs or bars "
            f"between cells, got the first line {first.strip()[:60]!r}."
        )
    return read_rows(file, separator), separator
