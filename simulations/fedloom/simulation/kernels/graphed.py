"""The local step as a CUDA graph: captured once, then launched whole for every full batch.

A small model leaves a GPU waiting for Python: each of a step's 40 to 400 kernels takes longer to
launch than to run. A graph launches all of them at once. It reads and writes fixed addresses, so
that each batch is copied to where the graph reads it.

Invariant: the examples of every step are those of the deployed client. A graph runs the kernels
that the uncaptured step runs. What Python code of the model decides, it decided at the capture.

Sources: NVIDIA, "CUDA C++ Programming Guide", section "CUDA Graphs"; `torch.cuda.graph`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.simulation.kernels.compiled import Compiled, Step, Tensors
from fedloom.simulation.kernels.holdings import Pair

_WARM_UP = 3
"""Steps before a capture, in which the libraries choose algorithms and take their memory."""


class Graphed(Compiled):
    """Trains by captured plain gradient descent; if a capture fails, as the resident kernel."""

    @classmethod
    def misses(cls, device: torch.device) -> str:
        """See `OnModel.misses`."""
        return "" if device.type == "cuda" else f"graphed needs a CUDA device, not {device.type}"

    def faster(self, step: Step) -> Step:
        """See `Compiled.faster`."""
        return _Captured(step)


@dataclass(frozen=True, slots=True)
class _Capture:
    """A graph, and the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    batch: Pair
    result: tuple[Tensor, Tensor]


class _Captured:
    """A step that is captured when it first sees a shape of batch.

    All tensors except those of the batch must be the same objects at every call.

    Args:
        step: to capture.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._captures: dict[tuple[object, ...], _Capture] = {}

    def __call__(
        self, params: Tensors, anchors: Tensors, lr: Tensor, mu: Tensor, batch: Pair
    ) -> tuple[Tensor, Tensor]:
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in batch)
        key = (*shapes, bool(anchors))
        if key not in self._captures:
            self._captures[key] = self._capture(params, anchors, lr, mu, batch)
        capture = self._captures[key]
        for held, tensor in zip(capture.batch, batch, strict=True):
            held.copy_(tensor)
        capture.graph.replay()
        value, output = capture.result
        return value.clone(), output.clone()  # the next launch overwrites them

    def _capture(
        self, params: Tensors, anchors: Tensors, lr: Tensor, mu: Tensor, batch: Pair
    ) -> _Capture:
        x, y = batch
        held = x.clone(), y.clone()
        before = [param.clone() for param in params]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call] # torch leaves it untyped
        stream.wait_stream(torch.cuda.current_stream())
        # The steps before the capture draw numbers, and change the parameters.
        with torch.random.fork_rng(devices=[x.device]), torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._step(params, anchors, lr, mu, held)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = self._step(params, anchors, lr, mu, held)
        for param, value in zip(params, before, strict=True):
            param.copy_(value)
        return _Capture(graph, held, result)
