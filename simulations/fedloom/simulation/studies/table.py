"""A study's results as a table: Markdown to read, CSV to analyse."""

import csv
import io
from collections.abc import Iterable

from fedloom.simulation.output import words
from fedloom.simulation.studies.study import OVER_SEEDS, Column, Study, StudyResults, metric_column


def rows(study: Study, results: StudyResults) -> list[str]:
    """The rows with runs, in the order of the study."""
    there = {run.row for run in results.runs}
    return [row for row in dict.fromkeys(cell.row for cell in study.cells) if row in there]


def columns(study: Study, results: StudyResults) -> list[Column]:
    """The columns with runs, in the order of the study."""
    if study.columns is not None:
        every = study.columns(results)
    else:
        names = dict.fromkeys(cell.column for cell in study.cells)
        every = [metric_column(name, study.metric) for name in names]
    there = rows(study, results)
    return [c for c in every if any(c.entry(results, row) is not None for row in there)]


def titles(study: Study, results: StudyResults) -> list[str]:
    """The titles of the table."""
    return [study.about, *(column.title for column in columns(study, results))]


def cells(study: Study, results: StudyResults) -> list[list[str]]:
    """The rows of the table, each with its name first."""
    shown = columns(study, results)
    return [
        [row, *(_text(column, results, row) for column in shown)] for row in rows(study, results)
    ]


def _text(column: Column, results: StudyResults, row: str) -> str:
    entry = column.entry(results, row)
    return words.ABSENT if entry is None else column.text(entry)


def markdown(study: Study, results: StudyResults) -> str:
    """A page with the command, the table and the remarks."""
    seeds = len({run.seed for run in results.runs})
    default = f"{study.metric} on the test examples at the end, {OVER_SEEDS}.".capitalize()
    note = (study.note or default).replace(OVER_SEEDS, words.over_seeds(seeds))
    head = titles(study, results)
    parts = (
        f"# {study.title}",
        f"    {results.command}",
        note,
        markdown_table(head, cells(study, results), right=head[1:]),
        markdown_table(claim_titles(study, results), claims(study, results))
        if study.claims
        else "",
        study.remarks.strip(),
        f"![]({study.name}.png)",
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _claimed(study: Study, results: StudyResults) -> list[str]:
    """The columns of cells that claims are checked against."""
    there = {run.column for run in results.runs}
    return [name for name in dict.fromkeys(cell.column for cell in study.cells) if name in there]


def claim_titles(study: Study, results: StudyResults) -> list[str]:
    """The titles of the claims."""
    return ["the paper's claim", *_claimed(study, results)]


def claims(study: Study, results: StudyResults) -> list[list[str]]:
    """Each claim that there are runs for, and what those of each column say about it."""

    def said(found: tuple[str, bool] | None) -> str:
        return words.ABSENT if found is None else f"{'yes' if found[1] else 'no'}: {found[0]}"

    columns = _claimed(study, results)
    checked = [[claim.check(results, column) for column in columns] for claim in study.claims]
    return [
        [claim.text, *map(said, found)]
        for claim, found in zip(study.claims, checked, strict=True)
        if any(found)
    ]


def markdown_table(
    head: Iterable[str], body: Iterable[Iterable[str]], right: Iterable[str] = ()
) -> str:
    """A table in Markdown, without a final newline.

    Args:
        head: titles.
        body: rows of text.
        right: titles of right-aligned columns.
    """
    titled, aligned = list(head), set(right)
    ruler = ["---:" if title in aligned else "---" for title in titled]
    return "\n".join("| " + " | ".join(line) + " |" for line in (titled, ruler, *body))


def comma_separated(results: StudyResults) -> str:
    """CSV with a line for each run: row, column, seed and its values."""
    names = list(dict.fromkeys(name for run in results.runs for name in run.values))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "column", "seed", *names])
    for run in results.runs:
        values = [run.values.get(name, "") for name in names]
        writer.writerow([run.row, run.column, run.seed, *values])
    return text.getvalue()
