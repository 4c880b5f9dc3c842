"""The journal's entry for an update about to leave: recipient, content and protection.

Invariant: an entry is made from the header that is sent.
"""

from typing import Any

from fedloom.client.owner.policy import noise_of
from fedloom.client.update.clip_and_noise import Guard
from fedloom.protocol.v1 import fleet_pb2

MAX_TENSORS = 64
"""Most tensor names in an entry; `num_tensors` is the full count."""


def account(
    header: fleet_pb2.UpdateHeader,
    offer: fleet_pb2.Task,
    server: str,
    federation: str,
    owners: Guard | None = None,
) -> tuple[str, dict[str, Any]]:
    """A sentence about the update that is about to leave, and its facts.

    Args:
        header: of the update.
        offer: of its task.
        server: host:port.
        federation: by this client's certificate; "" without TLS.
        owners: clipping and noise that the owner's policy added.
    """
    tensors = sorted({part.tensor for part in header.parts})
    private = offer.privacy if offer.HasField("privacy") else None
    facts: dict[str, Any] = {
        "run": header.task.run,
        "round": header.task.round,
        "server": server,
        "federation": federation,
        "size_bytes": header.size_bytes + header.ByteSize(),
        "num_tensors": len(tensors),
        "tensors": tensors[:MAX_TENSORS],
        "num_examples": header.training.num_examples or header.evaluation.num_examples,
        "weight": header.weight,
        "training": dict(header.training.values),
        "evaluation": dict(header.evaluation.values),
        "numbers": dict(header.scalars),
        "codec": header.compression.codec,
        "clip_norm": private.clip if private else None,
        "noise_multiplier": noise_of(offer) if private else 0.0,
        "own_clip_norm": owners.clip_norm if owners else None,
        "own_noise_multiplier": owners.noise_multiplier if owners else 0.0,
    }
    return _sentence(facts), facts


def _sentence(facts: dict[str, Any]) -> str:
    to = f" (federation {facts['federation']})" if facts["federation"] else " (without TLS)"
    where = f"to {facts['server']}{to} for round {facts['round']} of {facts['run']}"
    return f"Sends {size_text(facts['size_bytes'])} {where}: {'; '.join(_what(facts))}."


def _what(facts: dict[str, Any]) -> list[str]:
    said = []
    if facts["num_tensors"]:
        examples = facts["num_examples"]
        of = f" by training on {examples} examples" if examples else ""
        said.append(f"how {_tensors(facts)} changed{of}{protection_text(facts)}")
    measured = facts["training"] | {f"{n} of evaluation": v for n, v in facts["evaluation"].items()}
    if measured:
        said.append("measured " + ", ".join(f"{n} {v:.4g}" for n, v in measured.items()))
    if facts["numbers"]:
        said.append("numbers " + ", ".join(f"{n} {v:.4g}" for n, v in facts["numbers"].items()))
    return said or ["no tensors and no metrics"]


def _tensors(facts: dict[str, Any]) -> str:
    names, count = facts["tensors"], facts["num_tensors"]
    shown = ", ".join(names[:4]) + (", …" if count > 4 else "")
    return f"{count} tensor{'s' if count > 1 else ''} ({shown})"


def protection_text(facts: dict[str, Any]) -> str:
    """Protection as text: ", clipped to norm 1, with noise of 0.5 on each value"."""
    said = ""
    for of, by in (("own_", " by this device's policy"), ("", "")):
        clip, noise = facts[f"{of}clip_norm"], facts[f"{of}noise_multiplier"]
        if clip is not None:
            said += f", clipped to norm {clip:.4g}"
            said += f", with noise of {noise * clip:.4g} on each value{by}" if noise else by
    return said


def size_text(num_bytes: float) -> str:
    """A size in binary units: `184 B`, `38.1 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1023.95 or unit == "GiB":
            break
        num_bytes /= 1024
    return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
