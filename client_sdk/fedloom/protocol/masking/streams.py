"""Masks: keystreams that are added to a body, or subtracted from it.

A mask is AES-256 in counter mode over zeros, from counter 0, one byte for each byte of the body;
the zeros between values and words stay as they are. Key and counter are used for one body only.

Memory: one block for each thread, and a cipher's state for each stream.

References:
    NIST SP 800-38A, section 6.5 (counter mode).
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from fedloom.protocol.masking.body import BLOCK, SPARE, BodyLayout, Bytes, as_words, load, store

_AES_BLOCK: Final = 16
_ZEROS: Final = memoryview(bytes(BLOCK))


@dataclass(frozen=True, slots=True)
class MaskStream:
    """A mask, and whether it is added or subtracted.

    Attributes:
        key: 32 bytes.
        sign: 1 or −1.
    """

    key: bytes = field(repr=False)
    sign: Literal[1, -1]


def apply_streams(
    body: Bytes, layout: BodyLayout, streams: Sequence[MaskStream], *, threads: int = 1
) -> None:
    """Add masks to a body, or take them off, in place.

    Args:
        body: of `layout`, writable.
        layout: of the body.
        streams: in any order.
        threads: that work on parts of the values at a time.

    Raises:
        Refusal: the body is not of this layout.
    """
    layout.check(body)
    parts = [
        (offset + start, width, region[start : start + step])
        for offset, width, region in layout.regions(body)
        for step in (max(1, -(-len(region) // BLOCK // threads)) * BLOCK,)
        for start in range(0, len(region), step)
    ]
    if threads == 1:
        for offset, width, region in parts:
            _apply(offset, width, region, streams)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(_apply, *part, streams) for part in parts]:
            done.result()


def _apply(offset: int, width: int, region: Bytes, streams: Sequence[MaskStream]) -> None:
    """Apply masks to a part of a body that starts at byte `offset`."""
    ciphers = [(_keystream(stream.key, offset), stream.sign) for stream in streams]
    buffer = np.empty(BLOCK + SPARE, np.uint8)
    for start in range(0, len(region), BLOCK):
        chunk = region[start : start + BLOCK]
        zeros, length = _ZEROS[: len(chunk)], len(chunk)
        words, mask = load(chunk, width), as_words(buffer, length, width)
        for cipher, sign in ciphers:
            cipher.update_into(zeros, buffer.data)
            if sign > 0:
                np.add(words, mask, out=words)
            else:
                np.subtract(words, mask, out=words)
        store(words, chunk, width)


def _keystream(key: bytes, offset: int) -> CipherContext:
    """A cipher whose next byte is byte `offset` of the keystream."""
    counter, skipped = divmod(offset, _AES_BLOCK)
    cipher = Cipher(AES256(key), CTR(counter.to_bytes(_AES_BLOCK, "big"))).encryptor()
    cipher.update(bytes(skipped))
    return cipher
