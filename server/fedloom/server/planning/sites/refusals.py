"""What cannot pass through sites: a run that sets it is refused, by its name and with the reason.

A site sends one exact sum. So a round knows neither the update of a device nor its metrics, and the
devices of a site draw no secret and keep no memory together with those of others.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedloom.protocol.errors import UsageError
from fedloom.strategies import MetricsSettings, registry

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
    over_selection = spec.round_config().over_selection
    if spec.masking is None or over_selection == 1:
        return ""
    return (
        f"cohort.over_selection with [masking] and sites = true, got {over_selection:g}: a site "
        "whose sum comes too late has revealed it for nothing, and its devices mask no second "
        "update of a model."
    )


def _privacy(spec: "RunSpec") -> str:
    settings = spec.build_privacy()
    if settings is None or not settings.central:
        return ""
    return (
        f"[privacy] with mechanism {settings.mechanism} and sites = true, got it: its claim needs "
        "all devices in one draw, which sites make each by itself. Noise of devices, local or "
        "distributed, needs none."
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


def _metrics(spec: "RunSpec") -> str:
    settings = spec.metrics_settings()
    what = {"per_client": settings.per_client, "bins": settings.bins}
    what["quantiles other than 0 and 1"] = settings.quantiles != _USUAL.quantiles and not (
        {*settings.quantiles} <= {0.0, 1.0}
    )
    for name in (name for name, has in what.items() if has):
        return (
            f"metrics.{name} with sites = true, got it: sites send sums of what their devices "
            "measured, the extremes (quantiles = [0, 1]) and counts between given edges "
            "(metrics.edges)."
        )
    return ""


_CHECKS: tuple[Callable[["RunSpec"], str], ...] = (
    _hosted, _masking, _privacy, _mode, _aggregation, _selection, _metrics,
)  # fmt: skip
