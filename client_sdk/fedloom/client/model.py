"""The promoted model for inference: its parameters, its predictions, and exports.

    from fedloom.client import Model

    model = Model.latest("client.toml")
    scores = model.predict(module, x)            # a torch module, or an estimator of scikit-learn

Invariant: `latest` returns only a model that this federation promoted, also without a network.
"""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedloom.client.config import load
from fedloom.protocol.atomic_files import write_whole
from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.protocol.tensors.container import read_params

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model in a file.

    Attributes:
        path: of its safetensors file.
        digest: SHA-256 of the file, hex; empty for a file that was not promoted.
        run: that made it; empty for a file that was not promoted.
        round: of the run.
        promoted_at: UTC; None for a file that was not promoted.
        fresh: whether the server confirmed it in this call; False if the server was not reached.
    """

    path: Path
    digest: str = ""
    run: str = ""
    round: int = 0
    promoted_at: datetime | None = None
    fresh: bool = False

    @classmethod
    def latest(
        cls, config: str | Path = "client.toml", *, run: str = "", offline: bool = False
    ) -> "Model":
        """Get the promoted model; it is downloaded once and then read from this device.

        Args:
            config: path of the settings that `fedloom client enroll` wrote.
            run: id or name of a run; empty for the latest promotion of any run.
            offline: do not ask the server.

        Raises:
            UsageError: no model was promoted, or none is stored and the server is unreachable.
            Refusal: the server refuses this client, or its statement is not signed by the
                federation's key.
            IntegrityError: the server's statement is older than the stored one.
        """
        from fedloom.client.promoted_model import PromotedModels, fetch  # noqa: PLC0415 - a session's import

        settings, fresh = load(Path(config)), False
        shelf = PromotedModels(settings.state_dir)
        if not offline:
            try:
                with ThreadPoolExecutor(1) as aside:  # there may be an event loop here: a notebook
                    aside.submit(lambda: asyncio.run(fetch(settings, run))).result()
                fresh = True
            except UnavailableError as error:
                log.warning("the server is unreachable, using the stored model: %s", error)
        last = shelf.last(run)
        if last is None or not shelf.has(last.digest):
            raise UsageError(
                f"No promoted model in {settings.state_dir}. Run this once while "
                f"{settings.server} is reachable."
            )
        return cls(
            path=shelf.path(last.digest),
            digest=last.digest,
            run=last.run,
            round=last.round,
            promoted_at=datetime.fromtimestamp(last.promoted_us / 1e6, UTC),
            fresh=fresh,
        )

    def params(self) -> dict[str, NDArray[Any]]:
        """Arrays by name; copies that you may change.

        Raises:
            IntegrityError: the file is not a safetensors file.
        """
        return read_params(self.path, writable=True)

    def predict(self, target: Any, x: Any) -> NDArray[Any]:
        """Predict for a batch of inputs.

        Args:
            target: a torch module or a `TorchClient`, whose tensors are replaced by the model's; or
                a scikit-learn estimator or a client of one, which is not changed.
            x: inputs, one example per row.

        Returns:
            The module's outputs, or the estimator's predictions.

        Raises:
            UsageError: the model does not fit this target.
        """
        if _is_torch(target):
            from fedloom.client.torch.inference import predict  # noqa: PLC0415 - torch

            return predict(target, self.params(), x)
        if hasattr(target, "predict") or hasattr(target, "fitted"):
            return _estimator(target, self.params()).predict(x)  # type: ignore[no-any-return]
        raise UsageError(
            "Expected a torch module, a scikit-learn estimator, or a client of one, got "
            f"{type(target).__name__}. Use params() with your own code."
        )

    def export(
        self, out: str | Path, kind: str = "safetensors", target: Any = None, example: Any = None
    ) -> Path:
        """Export the model, and check that the exported file gives the same outputs.

        Args:
            out: the file to write; replaced if it exists.
            kind: `safetensors`, `torchscript`, `torch-export` or `onnx`.
            target: a torch module or a `TorchClient`; not used for safetensors.
            example: inputs of two or more examples; a `TorchClient` has its own.

        Raises:
            UsageError: the module cannot be exported in this format; the message gives the reason.
        """
        out = Path(out)
        if kind == "safetensors":
            write_whole(out, self.path.read_bytes())
            return out
        if not _is_torch(target):
            raise UsageError(
                f"Expected a torch module or a TorchClient to export {kind}, got "
                f"{type(target).__name__}: the model's file holds only parameters."
            )
        from fedloom.client.torch.exports import export  # noqa: PLC0415 - torch

        return export(target, self.params(), out, kind, example)


def _is_torch(target: Any) -> bool:
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(target).__mro__}
    return bool(
        names & {"torch.nn.modules.module.Module", "fedloom.client.torch.client.TorchClient"}
    )


def _estimator(target: Any, params: dict[str, NDArray[Any]]) -> Any:
    if hasattr(target, "fitted"):
        return target.fitted(params)
    from fedloom.client.sklearn.linear import load as fitted  # noqa: PLC0415 - scikit-learn

    return fitted(target, params)
