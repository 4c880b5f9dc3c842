"""Which runs servers can run that do not drive, but serve devices: gates."""

from fedloom.protocol.errors import UsageError
from fedloom.server.planning.spec import RunSpec


def check_gates(spec: RunSpec) -> None:
    """Refuse a run whose devices only the server that drives can serve.

    Raises:
        UsageError: the message names what it has.
    """
    found = {"sites = true": spec.sites, "[flower]": bool(spec.flower)}
    if kinds := [kind for kind, has in found.items() if has]:
        raise UsageError(
            f"Expected a run that gates can serve, got one with {' and '.join(kinds)}: set "
            "gates = false in server.toml of every replica for it."
        )
