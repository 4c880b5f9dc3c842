"""The check that a device scales its low-rank adapters as the run does."""

from collections.abc import Mapping

from fedloom.protocol.errors import UsageError
from fedloom.strategies import Adapters


def check_scales(wanted: Adapters, found: Mapping[str, float | None] | None = None) -> None:
    """Check a device's scales, lora_alpha / r: with another one, another function is averaged.

    Args:
        wanted: of the run.
        found: of the device's adapted layers, by name; None: not known.

    Raises:
        UsageError: the run sets a scale, and a layer has another one, or none is known.
    """
    scale = wanted.scale
    if scale is None:
        return
    said = f"Expected adapters scaled by {scale:g}, as adapters.scale of the run says, got"
    if not found:
        raise UsageError(
            f"{said} a client that cannot tell a scale. Use HFClient with peft, or TorchClient "
            "with fedloom.client.torch.lora; or remove adapters.scale from the run."
        )
    for name, mine in found.items():
        if mine is None:
            raise UsageError(
                f"{said} an unknown scale in {name}. Give the layer a `lora_scale`, as "
                "fedloom.client.torch.lora does, or remove adapters.scale from the run."
            )
        if abs(mine - scale) > 1e-6 * scale:
            raise UsageError(f"{said} {mine:g} in {name}. Set alpha to the scale times the rank.")
