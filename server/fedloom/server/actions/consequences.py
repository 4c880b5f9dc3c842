"""Descriptions of what actions do, for their confirmation and their answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedloom.server.fleet.sessions import Hold
from fedloom.server.ledger import Point
from fedloom.server.ledger.rows import RunRow
from fedloom.server.queries.client_views import ClientView
from fedloom.server.queries.views import Action, ActionArguments
from fedloom.server.rounds.manager import ACTIVE

_OF_A_ROUND = (Action.CLOSE, Action.ABORT, Action.EXTEND, Action.RETRY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """An action on a run that an operator requests.

    Attributes:
        run: its current row.
        round: its open round, from `RoundDriver.status`; None without one.
    """

    action: Action
    run: RunRow
    round: Mapping[str, Any] | None
    arguments: ActionArguments

    def done(self) -> str:
        """Why the action changes nothing; empty if it does."""
        name, state, asked = self.run.id, self.run.state, self.arguments.round
        is_so = {Action.PAUSE: "paused", Action.RESUME: "running", Action.STOP: "stopped"}
        if is_so.get(self.action) == state:
            return f"{name} is already {state}: nothing changes."
        number = None if self.round is None else self.round["number"]
        if asked is not None and self.action in _OF_A_ROUND and asked != number:
            now = "no round is open" if number is None else f"round {number} is open"
            retries = self.action is Action.RETRY and state == "paused" and number is None
            return "" if retries else f"Round {asked} is over; {now}: nothing changes."
        if self.action is Action.CLOSE and self.round and self.round["state"] == "closing":
            return f"Round {number} is already closing: nothing changes."
        if self.action is Action.RETRY and self.round and asked is None:
            return f"Round {number} is already open with the same model: nothing changes."
        same = ""
        if self.action is Action.PRIORITY and self._rank() == self.run.rank:
            same = "priority and share"
        if self.action is Action.GOAL and self.round and self._same_goal(self.round):
            same = "goal and quorum"
        return f"{name} already has this {same}: nothing changes." if same else ""

    def _same_goal(self, now: Mapping[str, Any]) -> bool:
        goal, quorum = self.arguments.goal, self.arguments.quorum
        return goal in {None, now["goal"]} and quorum in {None, now["quorum"]}

    def words(self) -> str:
        """What the action does."""
        name, which, updates = self.run.id, "its open round", ""
        if self.round is not None:
            which = f"round {self.round['number']}"
            updates = f" with {_updates(self.round['accepted'])}"
        clock = f" The deadline of {which} is paused; updates are accepted." if updates else ""
        dropped = f" {which.capitalize()} is dropped{updates}." if updates else ""
        again = "opens a round from the same model at once."
        if self.round is not None:
            again = f"drops {which}{updates} and opens it again from the same model at once."
        effects = {
            Action.PAUSE: f"opens no further round until it is resumed.{clock}",
            Action.RESUME: "continues; deadlines move by the length of the pause.",
            Action.STOP: f"ends permanently; its last model stays.{dropped}",
            Action.CLOSE: f"closes {which} now{updates} and makes a model of them.",
            Action.ABORT: f"drops {which}{updates} and opens another from the same model.",
            Action.EXTEND: f"gives {which} {self.arguments.seconds or 0.0:g} s more.",
            Action.RETRY: again,
            Action.PRIORITY: f"has priority {self._rank()[0]} and share {self._rank()[1]:g} from "
            "now on. Tasks under way are not interrupted.",
            Action.GOAL: f"uses {self._goal_words()} from now on, for {which} and later ones.",
        }
        return f"{name} {effects[self.action]}"

    def _rank(self) -> tuple[int, float]:
        (priority, share), wish = self.run.rank, self.arguments
        return (
            priority if wish.priority is None else wish.priority,
            share if wish.share is None else wish.share,
        )

    def _goal_words(self) -> str:
        goal, quorum = self.arguments.goal, self.arguments.quorum
        parts = [f"a goal of {goal} updates"] if goal else []
        parts += [f"a quorum of {quorum}"] if quorum else []
        text = " and ".join(parts) or "its present goal and quorum"
        if goal and self.round and self.round["accepted"] >= goal:
            text += f", which {_updates(self.round['accepted'])} reach at once,"
        return text


def _updates(count: int) -> str:
    return f"{count} update{'' if count == 1 else 's'}"


def rollback_words(run: RunRow, point: Point) -> str:
    """What rolling a run back to a point does."""
    where = f"round {point.number}" if point.number else "its beginning"
    if not point.undone:
        return f"{run.id} is already at {where}: nothing changes."
    words = (
        f"{run.id} continues from the model {point.digest[:12]} and the state of {where}. "
        f"{_counted(point.undone)} undone. Its open round, if any, is dropped with its updates."
    )
    if run.privacy is not None:
        words += " The privacy that they spent stays spent: the run has as many rounds fewer left."
    if run.state not in ACTIVE:
        words += f" It was {run.state} and is now paused: resume it to continue."
    return words


def evaluation_words(evaluation: Mapping[str, Any]) -> str:
    """A warning about means of an evaluation that disagree with the clients' medians; or nothing.

    Args:
        evaluation: a summary of clients' metrics; see `fedloom.strategies.summarize`.
    """
    quantiles = evaluation.get("quantiles", {})
    doubted = [
        f"{name} {evaluation['values'][name]:.4g} (median {quantiles[name]['0.5']:.4g})"
        for name in evaluation.get("disagree", ())
    ]
    if not doubted:
        return ""
    return (
        f" In its last evaluation means disagree with the clients' medians: {', '.join(doubted)}. "
        "One client, or a few, may decide them."
    )


def _counted(numbers: tuple[int, ...]) -> str:
    if len(numbers) == 1:
        return f"Round {numbers[0]} is"
    return f"{len(numbers)} committed rounds, {numbers[0]} to {numbers[-1]}, are"


def hold_words(client: ClientView, wanted: Hold | None) -> str:
    """What quarantine, draining or releasing a client does."""
    name, works = client.name, f" It works on {client.task} now." if client.task else ""
    if wanted is None and client.hold is None and client.failures:
        again = "gets offers again at once" if client.cools_until else "gets offers as before"
        return f"{name} {again}; its recent failures no longer count."
    if client.hold == wanted:
        is_so = {None: "not on hold", Hold.DRAIN: "drained"}.get(wanted, "in quarantine")
        return f"{name} is already {is_so}: nothing changes."
    if wanted is Hold.QUARANTINE:
        cancelled = f" Its task {client.task} is cancelled." if client.task else ""
        return (
            f"{name} gets no offers and its updates are refused until it is released.{cancelled} "
            "Its earlier updates still count."
        )
    if wanted is Hold.DRAIN:
        return f"{name} finishes its task, which counts, and gets no further offers.{works}"
    return f"{name} gets offers again when it is idle, and its updates count."


def revoke_words(name: str, *, changed: bool) -> str:
    """What revoking a client does."""
    if not changed:
        return f"{name} is already revoked: nothing changes."
    return (
        f"{name}'s certificates and unused tokens become invalid and its connection ends at once. "
        "It needs a new token to connect again."
    )
