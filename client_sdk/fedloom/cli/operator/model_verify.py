"""`fedloom model verify`: checks a model file against the federation's signature, offline."""

import hashlib
import json
from pathlib import Path
from typing import Any

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import FILE, json_option
from fedloom.protocol.errors import IntegrityError, Refusal, UsageError
from fedloom.protocol.trust.signing import KEY_BYTES, MODEL, Verifier, fingerprint


@click.command()
@click.argument("file", type=FILE)
@click.option(
    "--signature",
    type=FILE,
    required=True,
    metavar="FILE",
    help="From `fedloom model export --signature` or the console.",
)
@click.option(
    "--key",
    metavar="FINGERPRINT",
    help="Fingerprint of the federation's signing key. Default: the key in the signature.",
)
@json_option
def verify(file: Path, signature: Path, key: str | None) -> None:
    """Verify offline that FILE is a model that the federation signed.

    Exit code 4 if it is not. Without --key this proves only that file and signature match. Then
    compare the printed fingerprint with one that you know.

    \b
    Example:
      fedloom model verify best.safetensors --signature best.json --key "$FINGERPRINT"
    """
    signed = _read(signature)
    known = signed["key"] if key is None else _key(key)
    try:
        Verifier([known]).check(MODEL, signed["statement"].encode(), signed["message"])
    except Refusal as error:
        raise IntegrityError(f"The signature in {signature} is not valid: {error}") from None
    statement = _statement(signed["statement"], signature)
    with file.open("rb") as body:
        found = hashlib.file_digest(body, "sha256").hexdigest()
    if found != statement["digest"]:
        raise IntegrityError(
            f"Expected the model {statement['digest']} in {file}, got {found}: it is another file, "
            "or was changed."
        )
    of_key = fingerprint(signed["key"])
    document = {**statement, "fingerprint": of_key, "key_is_known": key is not None}
    advice = "" if key else ": compare it with one that you know, or give --key"
    output.emit_text(
        document,
        f"{file} is the model of round {statement['round']} of {statement['run']} in the "
        f"federation {statement['federation']!r}.\nSigned by {of_key}{advice}",
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
        return {
            "statement": str(found["statement"]),
            "key": bytes.fromhex(found["key"]),
            "message": bytes.fromhex(found["message"]),
        }
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UsageError(
            f"Expected a model's signature in {path}, got {type(error).__name__}: {error}."
        ) from None


def _statement(text: str, path: Path) -> dict[str, Any]:
    found = json.loads(text)  # its signature was verified
    if not isinstance(found, dict) or not {"digest", "run", "round", "federation"} <= {*found}:
        raise UsageError(f"The signed statement in {path} is not about a model.")
    return found


def _key(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise UsageError(
            f"Expected a fingerprint of {2 * KEY_BYTES} hex digits, got {text[:80]!r}."
        )
    return key
