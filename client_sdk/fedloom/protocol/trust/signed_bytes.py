"""The bytes under every signature: a purpose and a payload.

A signature for one purpose is not valid for another.

Source: docs/protocol.md, "Signatures".
"""

import re

_CONTEXT = b"fedloom-signature-1"
_PURPOSE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def to_sign(purpose: str, payload: bytes) -> bytes:
    r"""The bytes to sign.

    >>> to_sign("model", b"abc")
    b'fedloom-signature-1\x00model\x00abc'

    Args:
        purpose: the kind of statement; 1 to 64 of a-z 0-9 . _ -.
        payload: the signed bytes.

    Raises:
        ValueError: the purpose has other characters.
    """
    if not _PURPOSE.fullmatch(purpose):
        raise ValueError(f"Expected a purpose of 1 to 64 of a-z 0-9 . _ -, got {purpose!r}.")
    return b"\0".join((_CONTEXT, purpose.encode(), payload))
