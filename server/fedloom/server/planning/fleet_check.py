"""Decides which clients can take part in a new run, from what is known of them.

Pure. A client's model is known by the run that it last sent an update for: it shows which tensors
its code trains. The server knows nothing of the code itself, so a client that has taken part in no
run is counted as able, with a remark.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Of a model's tensors, by name."""
Phrase: TypeAlias = tuple[str, str]
"""What is said of one client, and of several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownClient:
    """What is known of a client.

    Attributes:
        name: of the client.
        online: whether it is connected, or comes when it was told.
        unfit: whether it checks in, and the run draws no such client.
        hold: an operator's order; None for none.
        cools: whether it gets no offers for a time, after failures.
        has_certificate: whether its certificate is still valid, or none is needed.
        shapes: of the model that it last trained or evaluated; None if it is not known.
        remark: how its last task ended, if not well.
    """

    name: str
    online: bool = True
    unfit: bool = False
    hold: str | None = None
    cools: bool = False
    has_certificate: bool = True
    shapes: Shapes | None = None
    remark: Phrase | None = None


@dataclass(frozen=True, slots=True)
class FleetFinding:
    """Something that concerns some clients.

    Attributes:
        text: with their number, such as `3 lack the tensor head`.
        clients: their names, in order.
    """

    text: str
    clients: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCheck:
    """Which clients can take part in a run.

    Attributes:
        total: clients that are enrolled.
        able: of those, clients that nothing keeps out.
        online: of those, clients that are connected.
        goal: clients that a round waits for.
        obstacles: what keeps clients out; each client is in the first that applies.
        remarks: what may keep able clients out.
    """

    total: int
    able: int
    online: int
    goal: int
    obstacles: Sequence[FleetFinding]
    remarks: Sequence[FleetFinding]

    @property
    def is_enough(self) -> bool:
        """Whether a round can reach its goal, once all able clients are connected."""
        return self.able >= self.goal

    @property
    def summary(self) -> str:
        """In a sentence or two."""
        if not self.total:
            return "No client has enrolled yet."
        why = f": {'; '.join(each.text for each in self.obstacles)}" if self.obstacles else ""
        text = f"{self.able} of {_clients(self.total)} can take part{why}."
        if not self.is_enough:
            text += f" A round waits for {self.goal} (cohort.goal)."
        return text


def check_fleet(clients: Iterable[KnownClient], model: Shapes | None, goal: int) -> FleetCheck:
    """Check a run against the clients of a server.

    Args:
        clients: all that are enrolled.
        model: shapes of the initial model; None if it is not known yet.
        goal: clients that a round waits for.
    """
    obstacles: dict[Phrase, list[str]] = {}
    remarks: dict[Phrase, list[str]] = {}
    total = able = online = 0
    for client in clients:
        total += 1
        if found := _obstacle(client, model):
            obstacles.setdefault(found, []).append(client.name)
            continue
        able += 1
        online += client.online
        for remark in _remarks(client, model):
            remarks.setdefault(remark, []).append(client.name)
    return FleetCheck(
        total=total,
        able=able,
        online=online,
        goal=goal,
        obstacles=_findings(obstacles),
        remarks=_findings(remarks),
    )


_COOLS: Phrase = ("cools off after failures", "cool off after failures")
_UNDRAWN: Phrase = (
    "checks in, and this run draws none that does (docs/check-in.md)",
    "check in, and this run draws none that does (docs/check-in.md)",
)


def _obstacle(client: KnownClient, model: Shapes | None) -> Phrase | None:
    if client.hold == "quarantine":
        return "is quarantined", "are quarantined"
    if client.hold == "drain":
        return "is drained", "are drained"
    if not client.has_certificate:
        return "has an expired certificate", "have expired certificates"
    if client.unfit or client.cools:
        return _UNDRAWN if client.unfit else _COOLS
    if model is None or client.shapes is None:
        return None
    return mismatch(client.shapes, model)


def mismatch(known: Shapes, model: Shapes) -> Phrase | None:
    """The first difference between the tensors of a client and of a model; None if they fit."""
    if lacking := sorted(model.keys() - known.keys()):
        return f"lacks {_tensors(lacking)}", f"lack {_tensors(lacking)}"
    if extra := sorted(known.keys() - model.keys()):
        text = f"{_tensors(extra)}, which the model lacks"
        return f"needs {text}", f"need {text}"
    for name in sorted(model):
        if (has := known[name]) != (wanted := model[name]):
            text = f"{name} of shape {list(has)}, which the model has as {list(wanted)}"
            return f"needs {text}", f"need {text}"
    return None


def _remarks(client: KnownClient, model: Shapes | None) -> Iterable[Phrase]:
    if not client.online:
        yield "is offline now", "are offline now"
    if model is not None and client.shapes is None:
        text = "sent no update yet, so it is not known which model"
        yield f"has {text} it trains", f"have {text} they train"
    if client.remark is not None:
        yield client.remark


def _tensors(names: Sequence[str]) -> str:
    more = len(names) - 1
    rest = "" if not more else f" and {more} more" if more > 1 else f" and {names[1]}"
    return f"the tensor{'s' if more else ''} {names[0]}{rest}"


def _findings(found: Mapping[Phrase, Sequence[str]]) -> list[FleetFinding]:
    """By the number of clients, most first."""
    order = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return [FleetFinding(f"{len(n)} {phrase[len(n) > 1]}", tuple(sorted(n))) for phrase, n in order]


def _clients(count: int) -> str:
    return f"{count:,} client{'' if count == 1 else 's'}"
