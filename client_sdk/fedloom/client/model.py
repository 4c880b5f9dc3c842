"""The promoted model, to be used: its parameters, its answers, and files for other programs.

    from fedloom.client import Model

    model = Model.latest("client.toml")
    scores = model.predict(module, x)            # a torch module, or an estimator of scikit-learn

Invariant: what `latest` gives is a model that this federation promoted, also without a network.
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
        digest: SHA-256 of that, hex; empty for a file of one's own.
        run: that made it; empty likewise.
        round: of the run.
        promoted_at: UTC; None for a file of one's own.
        fresh: the server has just said so; False where it could not be asked.
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
        """Get the promoted model: downloaded once, and from this device from then on.

        Args:
            config: path of the settings that `fedloom client enroll` wrote.
            run: id or name of a run; empty for the latest promotion of any.
            offline: do not ask the server.

        Raises:
            UsageError: nothing was promoted, or nothing is here and the server is out of reach.
            Refusal: the server will not have this client, or what it said is not signed by the
                federation's key.
            IntegrityError: the server said something older than before.
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
                log.warning("the server cannot be asked, using what is here: %s", error)
        last = shelf.last(run)
        if last is None or not shelf.has(last.digest):
            raise UsageError(
                f"Expected a promoted model in {settings.state_dir}, got none: run this once while "
                f"{settings.server} can be reached."
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
        """Arrays by name; private copies.

        Raises:
            IntegrityError: the file is no safetensors file.
        """
        return read_params(self.path, writable=True)

    def predict(self, target: Any, x: Any) -> NDArray[Any]:
        """Answer for inputs.

        Args:
            target: what computes: a torch module or a `TorchClient`, whose tensors are replaced by
                the model's; an estimator of scikit-learn or a client of one, which stays as it is.
            x: inputs, one example per row.

        Returns:
            A module's outputs, or what an estimator predicts.

        Raises:
            UsageError: the model is not for this target.
        """
        if _is_torch(target):
            from fedloom.client.torch.inference import predict  # noqa: PLC0415 - torch

            return predict(target, self.params(), x)
        if hasattr(target, "predict") or hasattr(target, "fitted"):
            return _estimator(target, self.params()).predict(x)  # type: ignore[no-any-return]
        raise UsageError(
            "Expected a torch module, an estimator of scikit-learn, or a client of one, got "
            f"{type(target).__name__}. Use params() with code of your own."
        )

    def export(
        self, out: str | Path, kind: str = "safetensors", target: Any = None, example: Any = None
    ) -> Path:
        """Write the model for other programs, and check that it answers there as here.

        Args:
            out: the file to write; replaced if it exists.
            kind: `safetensors`, `torchscript`, `torch-export` or `onnx`.
            target: a torch module or a `TorchClient`; for all but safetensors.
            example: inputs of two or more examples; a `TorchClient` has its own.

        Raises:
            UsageError: the module cannot be exported so; says why.
        """
        out = Path(out)
        if kind == "safetensors":
            write_whole(out, self.path.read_bytes())
            return out
        if not _is_torch(target):
            raise UsageError(
                f"Expected the code of a torch module or a TorchClient to export {kind}, got "
                f"{type(target).__name__}: the model's file has numbers alone."
            )
        from fedloom.client.torch.exports import export  # noqa: PLC0415 - torch

        return export(target, self.params(), out, kind, example)


_OF_TORCH = {
    ("torch.nn.modules.module", "Module"),
    ("fedloom.client.torch.client", "TorchClient"),
}


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
