"""Pages of clients: a list with search and filters, and one client with its tasks."""

from collections.abc import Sequence

from fastapi import APIRouter, Request

from fedloom.protocol import supernodes
from fedloom.protocol.errors import UsageError
from fedloom.server.access.scopes import Viewer
from fedloom.server.access.studies import studies
from fedloom.server.http.dependencies import Context
from fedloom.server.http.shared_answers import LivePart
from fedloom.server.queries import clients as queries
from fedloom.server.queries.client_views import ClientState, PartView
from fedloom.server.queries.clients import listed_clients, newest_parts, one_client
from fedloom.server.queries.privacy import one_spender
from fedloom.server.web.lists import Answer, ListColumn, listing, utc
from fedloom.server.web.render import page
from fedloom.server.web.rounds import MEMBER_LATER, PHASES, known_state, took_s, values_of

router = APIRouter(include_in_schema=False, route_class=LivePart)

PARTS_SHOWN = 50


STUDY = ListColumn("study", "Study", lambda c: c.study)
COLUMNS = (
    ListColumn("client", "Client", lambda c: c.name),
    ListColumn("state", "State", lambda c: c.state.value),
    ListColumn("task", "Task", lambda c: c.task),
    ListColumn("seen", "Seen", lambda c: utc(c.seen_at), first=True),
    ListColumn("certificate", "Certificate", lambda c: utc(c.certificate_until),
           hint="when it expires"),
    ListColumn("counted", "Counted", lambda c: c.counted, num=True, first=True,
           hint="of the rounds that selected it"),
    ListColumn("asked", "Selected", lambda c: c.asked, num=True, first=True,
           shown=False),
    ListColumn("success", "Success", lambda c: c.success_rate, num=True,
           hint="counted, of its tasks that ended and were not declined"),
    ListColumn("failures", "Failures", lambda c: c.failures, num=True, first=True, shown=False,
               hint="recent ones; each accepted update halves their number"),
    ListColumn("staleness", "Staleness", lambda c: c.staleness, num=True, first=True,
           shown=False),
    ListColumn("version", "Version", lambda c: c.version),
    ListColumn("labels", "Labels", lambda c: c.own_labels | c.labels),
    ListColumn("note", "Note", lambda c: c.note),
    ListColumn("enrolled", "Enrolled", lambda c: utc(c.enrolled_at), first=True,
           shown=False),
    ListColumn("last_counted", "Last counted", lambda c: utc(c.last_counted_at),
           first=True, shown=False),
)  # fmt: skip
PARTS = (
    ListColumn("offered_at", "When", lambda p: utc(p.offered_at), first=True),
    ListColumn("state", "State", lambda p: p.phase),
    ListColumn("run", "Run", lambda p: p.run),
    ListColumn("round", "Round", lambda p: p.round, num=True, first=True),
    ListColumn("session", "Session", lambda p: p.shape),
    ListColumn("num_examples", "Examples", lambda p: p.num_examples, num=True, first=True),
    ListColumn("norm", "Norm", lambda p: p.norm, num=True, first=True),
)
PARTS_LATER = (
    ListColumn("took_s", "Took", took_s, num=True, first=True),
    *(column for column in MEMBER_LATER if column.name != "offered_at"),
)


@router.get("/clients", response_model=None)
async def clients(request: Request, context: Context, who: Viewer) -> Answer:
    """Clients that match the filters, by name unless sorted."""
    filters = ("q", "state", "version", "label", "study")
    asked = listing(request, *filters, key="client", own="by name")
    state = asked.filters["state"]
    if state and state not in set(ClientState):
        raise UsageError(f"Expected state as one of {', '.join(ClientState)}, got {state[:80]!r}.")
    wanted = {**asked.filters, "state": ClientState(state) if state else None}
    rows, total = await listed_clients(context, asked.cut(), **wanted)
    known = context.study_choices()
    asked.fill(rows, (*COLUMNS[:2], STUDY, *COLUMNS[2:]) if known else COLUMNS)
    if asked.as_csv:
        return await asked.csv("clients")
    versions = (await queries.versions(context)).versions
    return page(
        request, context, who, "clients", page="clients",
        list=asked, total=total, states=list(ClientState), versions=versions,
        is_asked=any(asked.filters.values()), studies=known,
    )  # fmt: skip


@router.get("/clients/{name}", response_model=None)
async def client(request: Request, context: Context, who: Viewer, *, name: str) -> Answer:
    """One client: its status, its tasks and the actions on it."""
    found = await one_client(context, name)
    tasks = listing(
        request, "q", "state", key="offered_at", descending=True, own="newest first",
        limit=PARTS_SHOWN,
    )  # fmt: skip
    text, state = tasks.filters["q"].lower(), known_state(tasks.filters["state"], PHASES)
    parts = await newest_parts(context, name, limit=tasks.reach)
    wanted = [p for p in parts if text in p.run.lower() and state in ("", p.phase)]
    tasks.cut_out(wanted, PARTS, PARTS_LATER, values_of)
    if tasks.as_csv:
        return await tasks.csv(f"tasks-{name}")
    spent = await one_spender(context, name) if studies() is None else None
    losses = supernodes.LOSSES if supernodes.is_supernode(found.own_labels) else ""
    return page(
        request, context, who, "client", page="clients",
        c=found, list=tasks, has_parts=bool(parts), phases=PHASES, took_s=took_s,
        strip=_strip(parts[:PARTS_SHOWN]), spent=spent, losses=losses,
    )  # fmt: skip


def _strip(parts: Sequence[PartView]) -> list[tuple[str, str]]:
    """CSS class and label of a mark for each of the latest tasks, oldest first."""
    kinds = {"reported": "ok", "declined": "wait", "offered": "wait", "training": "train"}
    return [
        (kinds.get(part.phase, "end"), f"round {part.round} of {part.run}: {part.phase}")
        for part in reversed(parts)
    ]
