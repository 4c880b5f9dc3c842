"""Codecs: updates and models in fewer bytes, as more tensors of the same container.

numpy only, no I/O. Start at `base`, which defines a codec; docs/strategies/compression.md helps to
choose one, and docs/protocol.md defines the bytes that each writes.
"""

from fedloom.strategies.lazy_imports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
