"""The page that starts a run: common settings in fields, all others as TOML.

It checks settings as the API does when a run is submitted.
"""

import asyncio
import re
import shutil
from collections.abc import Mapping
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from fedloom.protocol.errors import UsageError
from fedloom.protocol.settings.toml import parse as parse_toml
from fedloom.server.access.scopes import Operator, Viewer, form_of
from fedloom.server.access.studies import studies
from fedloom.server.actions.runs import check_seen, submit, usable_model
from fedloom.server.http.dependencies import Context
from fedloom.server.http.shared_answers import LivePart
from fedloom.server.ledger import require_run
from fedloom.server.planning.spec import parse
from fedloom.server.queries.clients import supernode_notes
from fedloom.server.queries.context import ConsoleContext
from fedloom.server.queries.run_check import check_run
from fedloom.server.queries.views import NewRun
from fedloom.server.web.render import page
from fedloom.server.web.settings import as_toml
from fedloom.strategies import registry
from fedloom.strategies.masking.sessions import sum_lines
from fedloom.strategies.privacy import MissingAccountant

router = APIRouter(include_in_schema=False, route_class=LivePart)

_SEE_OTHER = 303

FIELDS: tuple[tuple[str, str, str, str], ...] = (
    ("name", "Name", "text", "the run's id begins with it"),
    ("rounds", "Rounds", "int", "training rounds to commit"),
    ("cohort.goal", "Cohort goal", "int", "clients a round opens with"),
    ("cohort.quorum", "Quorum", "int", "with fewer updates at its deadline, a round is abandoned"),
    ("cohort.deadline_s", "Deadline", "float", "seconds a round may take"),
    ("train.epochs", "Epochs", "int", "passes over each client's examples"),
    ("train.batch_size", "Batch size", "int", "examples in a step"),
    ("train.learning_rate", "Learning rate", "float", "of the clients' optimizer"),
    ("strategy.name", "Strategy", "strategy", "how updates become the next model"),
    ("seed", "Seed", "int", "of cohorts and of the clients' randomness"),
    ("study", "Study", "study", "the run has this study's clients alone"),
)
"""Path, label, kind and hint of each setting with a form field."""

DEFAULTS = {
    "name": "run", "rounds": "10", "cohort.goal": "8", "cohort.quorum": "4",
    "cohort.deadline_s": "600", "train.epochs": "1", "train.batch_size": "32",
    "train.learning_rate": "0.05", "strategy.name": "fedavg", "seed": "0",
    "evaluate": "on",
}  # fmt: skip

DIGITS = {
    **DEFAULTS, "name": "digits", "rounds": "25", "cohort.quorum": "8", "train.epochs": "2",
    "train.batch_size": "16", "train.learning_rate": "0.2",
}  # fmt: skip
"""The settings of `fedloom demo`."""

TEMPLATES = ("empty", "digits", "last")
"""What a form begins with: defaults, the demo's settings, or those of the newest run."""

AFTER = "after"
"""The value of `evaluate` that the form's box cannot show: it stays in the TOML."""

MAX_TOML = 1 << 18
"""Longest TOML, characters."""

MAX_DOTS = 64
"""Dots in a key: tomllib's time grows with their square, seconds for some thousands."""

_BEGINNINGS = (
    ("Unknown setting ", "toml"),  # it lists all settings
    ("Expected a name ", "name"),
    ("Expected a strategy, ", "strategy.name"),
    ("Expected `study` ", "study"),
    ("Expected precision ", "toml"),  # it names cohort.goal among what to change
)
"""Beginnings of errors that name no field or several, and the field each concerns."""

_PARSED = {"text": str, "int": int, "float": float, "strategy": str, "study": str}


@router.get("/runs/new")
async def new(
    request: Request,
    context: Context,
    who: Viewer,
    clone: str = "",
    template: Literal["empty", "digits", "last"] = "empty",
) -> HTMLResponse:
    """The form, with the settings of a template or of the run `clone`.

    Only a clone begins with a model chosen: the one that the run began with.
    """
    values: dict[str, str] = dict(DIGITS if template == "digits" else DEFAULTS)
    newest = (await context.runs_seen())[-1:]
    if template == "last" and newest and not clone:
        spec, values = _apart(newest[0].spec)
        values["toml"] = as_toml(spec, newest[0].spec)
    if clone:
        run = await context.run_id(clone)
        row = require_run(await context.in_reader(context.ledger.run, run), run)
        spec, values = _apart(row.spec)
        begun = await context.in_reader(context.ledger.list_models, run)
        values |= {"toml": as_toml(spec, row.spec), "model": begun[0].digest if begun else ""}
    return await _form(request, context, who, values, clone=clone, begins=template, last=newest)


@router.post("/runs/new")
async def begin(request: Request, context: Context, who: Operator) -> Response:
    """Check or start the run; an error is shown beside its field."""
    form = await form_of(request)
    try:
        spec = together(form)
        if form.get("then") == "check":
            checked = await asyncio.to_thread(parse, spec)
            check_seen(checked)
            wanted = form.get("model", "")
            model = await usable_model(context, who, wanted) if wanted else ""
            plan, facts = checked.privacy_plan(), checked.sum_facts()
            found = {
                "checked": as_toml(checked.as_dict()),
                "claim": None if plan is None else plan.claim(),
                "sums": [] if facts is None else sum_lines(facts),
                "fleet": await check_run(context, checked, model),
            }
            return await _form(request, context, who, form, **found)
        made = await submit(context, who, NewRun(spec=spec, model=form.get("model", "")))
    except (UsageError, ValueError, MissingAccountant) as error:
        return await _form(request, context, who, form, status=422, fault=str(error))
    return RedirectResponse(f"/runs/{made.id}", _SEE_OTHER)


async def _form(
    request: Request, context: ConsoleContext, who: Any, values: Mapping[str, str], **more: Any
) -> HTMLResponse:
    rows = await context.models_seen(limit=1000)
    fault = more.pop("fault", "")
    known = {"clone": "", "checked": "", "claim": None, "sums": [], "fleet": None,
             "begins": "", "last": [], **more}  # fmt: skip
    return page(
        request, context, who, "submit", page="runs",
        values={"toml": "", "model": "", **values}, fields=FIELDS, fault=fault,
        at=blamed(fault), models=list({r.digest: r for r in rows}.values())[::-1][:200],
        studies=_choices(context), strategies=sorted(registry.STRATEGIES),
        notes=await supernode_notes(context),
        most_bytes=await context.in_disk(_room, context), **known,
    )  # fmt: skip


def _room(context: ConsoleContext) -> int:
    """Bytes of the largest model that can be uploaded now: by the settings, and by the disk."""
    free = shutil.disk_usage(context.models.path("any").parent).free
    return min(context.config.max_model_bytes, free)


def _choices(context: ConsoleContext) -> list[str]:
    """Studies to choose from; empty if there are none."""
    known = context.studies_seen()
    return known if studies() is not None or not known else ["", *known]


def together(form: Mapping[str, str]) -> dict[str, Any]:
    """The specification that a form describes.

    Raises:
        UsageError: the TOML is not valid, or a field has the wrong type.
    """
    spec = _other(form.get("toml", "").replace("\r\n", "\n"))
    for path, label, kind, _ in FIELDS:
        text = form.get(path, "").strip()
        if not text:
            continue
        try:
            value = _PARSED[kind](text)
        except ValueError:
            what = "a whole number" if kind == "int" else "a number"
            raise UsageError(f"Expected {path} ({label}) as {what}, got {text[:40]!r}.") from None
        table, _, name = path.rpartition(".")
        place = spec.setdefault(table, {}) if table else spec
        if not isinstance(place, dict):
            raise UsageError(f"Expected {table} as a table, got {place!r}.")
        place[name] = value
    if spec.get("evaluate") != AFTER:
        spec["evaluate"] = form.get("evaluate", "") == "on" and "privacy" not in spec
    return spec


def _other(text: str) -> dict[str, Any]:
    """The settings without a form field, parsed from TOML.

    Raises:
        UsageError: the TOML is not valid, or would take long to parse.
    """
    if len(text) > MAX_TOML:
        raise UsageError(f"Expected TOML of at most {MAX_TOML} characters, got {len(text)}.")
    if any(part.count(".") > MAX_DOTS for part in re.split(r"[=\n,{]", text)):
        raise UsageError(f"Expected TOML keys of at most {MAX_DOTS} dots, got more.")
    return parse_toml(text, "the other settings")


def _apart(spec: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Split a specification into the settings without a form field and the form's values."""
    rest = {n: dict(v) if isinstance(v, Mapping) else v for n, v in spec.items()}
    values = {"evaluate": "on" if rest.get("evaluate") else ""}
    if rest.get("evaluate") != AFTER:
        rest.pop("evaluate", None)
    for path, *_ in FIELDS:
        table, _, name = path.rpartition(".")
        place = rest.get(table, {}) if table else rest
        value = place.pop(name, None) if isinstance(place, dict) else None
        values[path] = (
            "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
        )
    return {n: v for n, v in rest.items() if v != {}}, values


def blamed(fault: str) -> str:
    """The field that an error concerns; the TOML if it is none of the others.

    >>> blamed("Expected quorum=9 from 1 to goal=8 clients."), blamed("Expected TOML: no.")
    ('cohort.quorum', 'toml')
    """
    if not fault:
        return ""
    for beginning, path in _BEGINNINGS:
        if fault.startswith(beginning):
            return path
    if "model" in fault.partition(",")[0].lower():
        return "model"
    words = fault.replace("=", " ").replace(".", " ").replace(",", " ").split()
    short = {path.rpartition(".")[2]: path for path, *_ in FIELDS}
    dotted = next((path for path, *_ in FIELDS if "." in path and path in fault), "")
    return dotted or next((short[w] for w in words if w in short and w != "name"), "toml")
