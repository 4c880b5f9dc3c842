"""Exports a module with a model's tensors as TorchScript, torch.export or ONNX.

Sources: https://docs.pytorch.org/docs/stable/export.html and
https://docs.pytorch.org/docs/stable/onnx.html; ONNX IR, https://onnx.ai/onnx/repo-docs/IR.html.

Invariant: a file is written only if the model that is read back from it gives the module's outputs.
"""

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedloom.client.torch.adapters import merged
from fedloom.client.torch.client import TorchClient
from fedloom.client.torch.inference import ready
from fedloom.protocol.errors import UsageError

CLOSE = 1e-4
"""Tolerance of an output, absolute and relative, for rounding."""
_INSTALL = "ONNX needs an extra that is not installed: pip install 'fedloom[onnx]'."


def export(
    target: nn.Module | TorchClient,
    params: Mapping[str, NDArray[Any]],
    out: Path,
    kind: str,
    example: Any = None,
) -> Path:
    """Write a module with these tensors, for inputs with any number of examples.

    Args:
        target: the module, or its client; its tensors are replaced.
        params: the model.
        out: the file; replaced if it exists.
        kind: `torchscript`, `torch-export` or `onnx`.
        example: inputs of two or more examples, a tensor or an array. Default: the client's.

    Raises:
        UsageError: the module cannot be exported in this format, or the exported model gives other
            outputs.
    """
    if kind not in WRITERS:
        raise UsageError(f"Expected a format of safetensors, {', '.join(WRITERS)}, got {kind!r}.")
    module = merged(ready(target, params)).cpu()
    x = _example(target, example)
    temporary = out.with_name(f"{out.stem}.tmp{out.suffix}")
    batches = _inputs(x)
    wanted = _answers(module, batches)
    try:
        with _quiet():
            answer = WRITERS[kind](module, x, temporary)
            for batch, right in zip(batches, wanted, strict=True):
                _compare(answer(batch), right, kind)
        return temporary.replace(out)
    except UsageError:
        raise
    except ModuleNotFoundError as error:
        raise UsageError(_INSTALL) from error
    except Exception as error:
        first = str(error).strip().splitlines() or [""]
        raise UsageError(
            f"{kind} cannot express this module: {type(error).__name__}: {first[0][:300]}"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _inputs(x: Tensor) -> list[Tensor]:
    """The example inputs and variations, which may take other branches of the module."""
    turned = [x, x[:1], x.flip(0)]
    return [*turned, -x, 10 * x, torch.zeros_like(x)] if x.is_floating_point() else turned


def _answers(module: nn.Module, batches: Iterable[Tensor]) -> list[Any]:
    try:
        with torch.no_grad():
            return [module(batch) for batch in batches]
    except Exception as error:
        raise UsageError(
            f"The module failed on the example inputs: {type(error).__name__}: {error}. Give "
            "inputs of its shape and dtype as example=x."
        ) from error


Answer = Callable[[Tensor], Any]


def _torchscript(module: nn.Module, x: Tensor, out: Path) -> Answer:
    _traced(module, x).save(str(out))
    loaded = torch.jit.load(str(out))  # type: ignore[no-untyped-call]
    return lambda x: loaded(x).detach()


def _traced(module: nn.Module, x: Tensor) -> Any:
    """The module's trace on these inputs; compiled instead if its branches may depend on them."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        traced = torch.jit.trace(module, x, check_trace=False)  # type: ignore[no-untyped-call]
    if any(each.category.__name__ == "TracerWarning" for each in warned):
        with suppress(Exception):  # scripting supports less of Python than tracing
            return torch.jit.script(module)
    return traced


def _exported(module: nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))


def _torch_export(module: nn.Module, x: Tensor, out: Path) -> Answer:
    torch.export.save(_exported(module, x), str(out))
    loaded = torch.export.load(str(out)).module()
    return lambda x: loaded(x).detach()


def _onnx(module: nn.Module, x: Tensor, out: Path) -> Answer:
    import onnx  # noqa: PLC0415 - an extra

    program = torch.onnx.export(
        module,
        (x,),
        input_names=["x"],
        output_names=["y"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.save(str(out), external_data=False)
    onnx.checker.check_model(str(out))
    run = _onnx_session(out)
    return lambda x: torch.as_tensor(run(x.numpy()))


def _onnx_session(path: Path) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """A function that runs a file: by onnxruntime if installed, else by ONNX's reference."""
    try:
        import onnxruntime  # noqa: PLC0415 - optional

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except ModuleNotFoundError:
        from onnx.reference import ReferenceEvaluator  # noqa: PLC0415

        session = ReferenceEvaluator(str(path))
    return lambda x: np.asarray(session.run(None, {"x": x})[0])


WRITERS: dict[str, Callable[[nn.Module, Tensor, Path], Answer]] = {
    "torchscript": _torchscript,
    "torch-export": _torch_export,
    "onnx": _onnx,
}


def _example(target: nn.Module | TorchClient, example: Any) -> Tensor:
    if example is None and isinstance(target, TorchClient):
        example = target.example()
    if example is None:
        raise UsageError("Exporting a module needs example inputs: give example=x.")
    x = example if isinstance(example, Tensor) else torch.as_tensor(np.asarray(example))
    if not x.ndim or len(x) < 2:
        # torch.export would treat a batch size of one as a constant.
        raise UsageError(f"Expected inputs of two or more examples, got {tuple(x.shape)}.")
    return x.detach().cpu()


def _compare(got: Any, wanted: Any, kind: str) -> None:
    if not isinstance(wanted, Tensor):
        raise UsageError(
            f"Expected a module that returns a tensor, to export {kind}, got "
            f"{type(wanted).__name__}."
        )
    if got.shape != wanted.shape or not torch.allclose(
        got.double(), wanted.double(), rtol=CLOSE, atol=CLOSE, equal_nan=True
    ):
        raise UsageError(
            f"The model that was exported as {kind} gives other outputs than the module, which may "
            "branch on its inputs. Export it as torch-export, or as safetensors."
        )


@contextmanager
def _quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
