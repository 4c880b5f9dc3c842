"""The paper's results beside ours: rows of one table, for a terminal and for Markdown.

Source: McMahan et al. 2017, https://arxiv.org/abs/1602.05629, Tables 1 and 2. A speedup is the
baseline's rounds over the row's; the baseline is C = 0 in Table 1 and FedSGD in Table 2.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fedloom.simulation.output import words
from fedloom.simulation.studies.mcmahan2017 import grid, reference, search
from fedloom.simulation.studies.mcmahan2017.published import PUBLISHED, Published
from fedloom.simulation.studies.mcmahan2017.search import SearchResult
from fedloom.simulation.studies.table import markdown_table

COLUMNS = (
    "table", "model", "split", "E", "B", "C",
    "paper", "ours", "reference", "ratio", "paper ×", "ours ×", "η", "remarks",
)  # fmt: skip
_SPLITS = {"iid": "IID", "noniid": "non-IID"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """A result of the paper and ours.

    Attributes:
        published: the paper's.
        name: of the cell.
        rounds: ours, interpolated; None if not reached or not run.
        reference: of the plain loop at our rate, by seed; empty if it was not run.
        ratio: ours over the paper's.
        paper_speedup: over the baseline in the paper.
        speedup: over the baseline in our runs.
        learning_rate: the best.
        remarks: on our result.
    """

    published: Published
    name: str
    rounds: float | None
    reference: tuple[float | None, ...]
    ratio: float | None
    paper_speedup: float | None
    speedup: float | None
    learning_rate: float | None
    remarks: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = asdict(self)
        published = values.pop("published")
        return {
            "table": published["table"],
            **published["setting"],
            "paper_rounds": published["rounds"],
            **values,
        }

    def cells(self) -> tuple[str, ...]:
        """Text for `COLUMNS`."""
        published, setting = self.published, self.published.setting
        return (
            str(published.table),
            setting.model.upper(),
            _SPLITS[setting.split],
            str(setting.epochs),
            "∞" if setting.batch is None else str(setting.batch),
            f"{setting.fraction:g}",
            _text(published.rounds, ".0f"),
            _text(self.rounds, ".1f"),
            _several(self.reference),
            _text(self.ratio, ".2f"),
            _text(self.paper_speedup, ".1f", "×"),
            _text(self.speedup, ".1f", "×"),
            _text(self.learning_rate, "g"),
            self.remarks,
        )


def compare(
    found: Mapping[str, SearchResult], *, plain: reference.Runs | None = None, unrun: bool = False
) -> list[ComparisonRow]:
    """Rows in the paper's order.

    Args:
        found: our results by cell.
        plain: runs of the plain loop.
        unrun: also rows without a result.
    """
    rows = []
    for published in PUBLISHED:
        name = published.setting.name
        if name in found or unrun:
            base = found.get(published.baseline.name)
            rows.append(_row(published, found.get(name), base, plain or {}))
    return rows


def _row(
    published: Published,
    found: SearchResult | None,
    base: SearchResult | None,
    plain: reference.Runs,
) -> ComparisonRow:
    best = None if found is None else found.best
    ours = None if best is None else best.rounds
    baseline = None if base is None or base.best is None else base.best.rounds
    is_baseline = published.setting == published.baseline
    paper_baseline = next(
        p.rounds for p in PUBLISHED if (p.table, p.setting) == (published.table, published.baseline)
    )
    return ComparisonRow(
        published=published,
        name=published.setting.name,
        rounds=ours,
        reference=()
        if best is None
        else reference.rounds_of(plain, published.setting.name, best.learning_rate),
        ratio=_over(ours, published.rounds),
        paper_speedup=None if is_baseline else _over(paper_baseline, published.rounds),
        speedup=None if is_baseline else _over(baseline, ours),
        learning_rate=None if best is None else best.learning_rate,
        remarks="; ".join(_remarks(found)) if found is not None else "not run",
    )


def _remarks(found: SearchResult) -> Iterable[str]:
    best = found.best
    if best is None:
        yield "not run"
        return
    if best.rounds is None:
        accuracy = words.metric("accuracy", best.accuracy)
        yield f"not reached in {best.last_round} rounds, {accuracy} at best"
    tried = {attempt.k for attempt in found.attempts if attempt.ended != search.CUT}
    if cut := [f"{a.learning_rate:g}" for a in found.attempts if a.ended == search.CUT]:
        yield f"cut: η = {', '.join(cut)}"
    if not found.in_the_middle:
        yield f"best of {len(tried)} rates at the grid's edge" if tried else "one rate"
    elif not {best.k - 1, best.k + 1} <= tried:
        yield "grid of 10^(1/3)"


def _over(count: float | None, by: float | None) -> float | None:
    return None if count is None or by is None else count / by


def _text(value: float | None, form: str, unit: str = "") -> str:
    return words.ABSENT if value is None else f"{value:{form}}{unit}"


def _several(counts: tuple[float | None, ...]) -> str:
    """Mean and deviation over the seeds; those that did not reach the target are counted."""
    reached = [count for count in counts if count is not None]
    missed = f" ({len(counts) - len(reached)} never)" if len(reached) < len(counts) else ""
    if not reached:
        return words.ABSENT + missed
    spread = f" ± {stdev(reached):.1f}" if len(reached) > 1 else ""
    return f"{fmean(reached):.1f}{spread}{missed}"


def markdown(rows: Iterable[ComparisonRow]) -> str:
    """The table in Markdown."""
    return markdown_table(COLUMNS, (row.cells() for row in rows), right=_RIGHT) + "\n"


_RIGHT = frozenset(COLUMNS[3:13])


def titles() -> list[str]:
    """Column titles for `fedloom.cli.common.output`: numbers right-aligned, remarks wrapped."""
    return [
        f">{column}" if column in _RIGHT else f"~{column}" if column == "remarks" else column
        for column in COLUMNS
    ]


def rates(found: Mapping[str, SearchResult]) -> str:
    """Every rate, in Markdown."""
    columns = ("cell", "η", "rounds", "ended", "last round", "best accuracy", "clients/s", "time")
    lines = []
    for name, result in found.items():
        for attempt in result.attempts:
            mark = "**" if attempt is result.best else ""
            lines.append(
                (
                    name,
                    f"{mark}{grid.value(attempt.k):g}{mark}",
                    _text(attempt.rounds, ".1f"),
                    attempt.ended,
                    str(attempt.last_round),
                    f"{attempt.accuracy:.4f}",
                    f"{attempt.clients_per_s:g}",
                    words.duration(attempt.wall_s),
                )
            )
    return markdown_table(columns, lines) + "\n"


def results(folder: Path) -> dict[str, SearchResult]:
    """Results in a folder, by the cells' names, in the paper's order.

    Files are `NAME/result.json` of a search, or committed `NAME.json`.

    Raises:
        UsageError: a file is not a result.
    """
    found = {}
    for name in dict.fromkeys(published.setting.name for published in PUBLISHED):
        for path in (folder / name / "result.json", folder / f"{name}.json"):
            if path.exists():
                found[name] = search.read(path)
                break
    return found
