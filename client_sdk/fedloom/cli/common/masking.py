"""Words for masked runs and rounds, in tables and on the screen of `fedloom top`."""

from collections.abc import Mapping
from typing import Any

STEPS = ("ready", "shares", "masked updates", "signatures", "reveals")
"""What members send, by the step of a masked round."""


def phase(now: Mapping[str, Any]) -> str:
    """The phase of an open round: of a masked one who is ready, or the step of its sessions.

    >>> phase({"state": "closing"})
    'closing'
    >>> masked = {"state": "reporting", "accepted": 40, "masking": {"step": 0, "steps": 4}}
    >>> phase(masked), phase({**masked, "state": "masking", "masking": {"step": 1, "steps": 4}})
    ('ready 40', 'masking 1/4')
    """
    masking = now.get("masking")
    if masking is None or now["state"] not in ("reporting", "masking"):
        return str(now["state"])
    if masking["step"] == 0:
        return f"ready {now['accepted']}"
    return f"masking {masking['step']}/{masking['steps']}"


def updates(now: Mapping[str, Any]) -> str:
    """What counts towards the goal of an open round.

    >>> updates({}), updates({"masking": {"step": 0}}), updates({"masking": None})
    ('updates', 'ready', 'updates')
    """
    return "updates" if now.get("masking") is None else STEPS[0]


def sent(now: Mapping[str, Any]) -> str:
    """How many members sent what the sessions of a masked round wait for; empty without sessions.

    >>> sent({"masking": {"step": 2, "sent": 23, "asked": 40, "sessions": 1}})
    'masked updates from 23 of 40, 1 session'
    """
    masking = now.get("masking")
    if masking is None or not masking["asked"]:
        return ""
    count = masking["sessions"]
    noun = "session" if count == 1 else "sessions"
    return f"{STEPS[masking['step']]} from {masking['sent']} of {masking['asked']}, {count} {noun}"
