"""What cannot pass through sites: a run that sets it is refused, by its name and with the reason.

A site sends one exact sum. So a round knows neither the update of a device nor its metrics, and the
devices of a site draw no secret and keep no memory together with those of others.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedloom.protocol.errors import UsageError
from fedloom.strategies import DELTA, MetricsSettings, registry

if TYPE_CHECKING:
    from fedloom.server.planning.spec import RunSpec

_USUAL = MetricsSettings()


def check_sites(spec: "RunSpec") -> None:
    """Check that all parts of a run pass through sites.

    Raises:
        UsageError: one does not; the message names it and says why.
    """
    for check in _CHECKS:
        if got := check(spec):
            raise UsageError(f"Expected no {got} Remove it, or set sites = false.")


def _hosted(spec: "RunSpec") -> str:
    name = str(spec.strategy.get("name", ""))
    if not name.startswith(registry.HOSTED):
        return ""
    return f"strategy {name} with sites = true, got it: a site cannot build a strategy of Flower."


def _masking(spec: "RunSpec") -> str:
    if spec.masking is None:
        return ""
    return "[masking] with sites = true, got one: a masking session is of clients of one server."


def _privacy(spec: "RunSpec") -> str:
    if not spec.privacy:
        return ""
    return (
        "[privacy] with sites = true, got one: its claim needs all devices in one draw, which "
        "sites make each by itself."
    )


def _mode(spec: "RunSpec") -> str:
    if spec.buffer_config() is None:
        return ""
    return (
        'cohort.mode = "buffered" with sites = true, got it: a site\'s sum is of one model, and '
        "stale updates weigh less each."
    )


def _aggregation(spec: "RunSpec") -> str:
    if spec.needs == "sum":
        return ""
    adapters = spec.build_adapters()
    what = f"adapters.aggregate = {adapters.aggregate!r}" if adapters.by_products else ""
    what = what or f"aggregation {spec.build_strategy().aggregation.name}"
    return f"{what} with sites = true, got it: it needs each update, and sites send their sum."


def _selection(spec: "RunSpec") -> str:
    policy = spec.build_selection()
    if policy.name == "uniform":
        return ""
    return (
        f"selection {policy.name} with sites = true, got it: it ranks devices by what each "
        "reports, and sites report sums."
    )


def _rule(spec: "RunSpec") -> str:
    rule = spec.build_strategy().rule
    plain = not (rule.receives or rule.remembers or rule.scalars or rule.picks)
    if plain and tuple(rule.groups) == (DELTA,):
        return ""
    return (
        f"client rule {rule.name} (of strategy {spec.strategy['name']}) with sites = true, got "
        "it: its devices get, keep or send more than the model and its changes."
    )


def _compression(spec: "RunSpec") -> str:
    scheme = spec.build_compression()
    if spec.build_broadcast() is not None:
        return "compression.down with sites = true, got it: sites do not pass differences on."
    if scheme is None or not scheme.remembers:
        return ""
    return (
        "compression.up with memory (error_feedback) with sites = true, got it: a device is told "
        "which of its updates counted, and a site learns that only with the next round."
    )


def _parts(spec: "RunSpec") -> str:
    why = "sites = true, got it: updates must cover whole tensors, and the same ones."
    if spec.build_personal().remembers:
        return f"[personal] with {why}"
    if spec.adapters:
        return f"[adapters] with {why}"
    if uneven := spec.local_training().uneven:
        return f"{uneven} with {why}"
    return ""


def _metrics(spec: "RunSpec") -> str:
    settings = spec.metrics_settings()
    for name in ("per_client", "bins", "quantiles"):
        if getattr(settings, name) != getattr(_USUAL, name):
            return (
                f"metrics.{name} with sites = true, got it: sites send the sums of what their "
                "devices measured, of which only means follow."
            )
    return ""


_CHECKS: tuple[Callable[["RunSpec"], str], ...] = (
    _hosted, _masking, _privacy, _mode, _aggregation, _selection, _rule, _compression, _parts,
    _metrics,
)  # fmt: skip
