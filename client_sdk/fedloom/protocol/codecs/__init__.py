"""Codecs: updates and models in fewer bytes, as more tensors of the same container.

numpy only, no I/O. Start at `base`, which says what a codec is; docs/strategies/compression.md
helps to choose one, and docs/protocol.md says what each writes, byte by byte.
"""

from typing import TYPE_CHECKING

from fedloom.strategies.lazy_imports import exports

if TYPE_CHECKING:
    from fedloom.protocol.codecs.base import Codec, Decoder, Encoded, Inspector, Stored
    from fedloom.protocol.codecs.draws import stream
    from fedloom.protocol.codecs.floats import Bf16, Fp16
    from fedloom.protocol.codecs.lossless import Lossless
    from fedloom.protocol.codecs.low_rank import LowRank
    from fedloom.protocol.codecs.quantise import Int4, Int8
    from fedloom.protocol.codecs.reading import Sequential, decode, decoded, held
    from fedloom.protocol.codecs.registry import CODECS, codec
    from fedloom.protocol.codecs.sparse import RandomK, TopK

__getattr__ = exports(
    __name__,
    {
        "base": "Codec Decoder Encoded Inspector Stored",
        "draws": "stream",
        "floats": "Bf16 Fp16",
        "lossless": "Lossless",
        "low_rank": "LowRank",
        "quantise": "Int4 Int8",
        "reading": "Sequential decode decoded held",
        "registry": "CODECS codec",
        "sparse": "RandomK TopK",
    },
)

__all__ = [
    "CODECS",
    "Bf16",
    "Codec",
    "Decoder",
    "Encoded",
    "Fp16",
    "Inspector",
    "Int4",
    "Int8",
    "Lossless",
    "LowRank",
    "RandomK",
    "Sequential",
    "Stored",
    "TopK",
    "codec",
    "decode",
    "decoded",
    "held",
    "stream",
]
