"""`fedloom model verify`: checks a model file against the federation's signature, offline."""

import hashlib
import json
from pathlib import Path
from typing import Any

import click

from fedloom.cli.common import output
from fedloom.cli.common.options import json_option
from fedloom.protocol.errors import IntegrityError, Refusal, UsageError
from fedloom.protocol.trust.signing import KEY_BYTES, MODEL, Verifier, fingerprint

_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command()
@click.argument("file", type=_FILE)
@click.option(
    "--signature",
    type=_FILE,
    required=True,
    metavar="FILE",
    help="From `fedloom model export --signature` or the console.",
)
@click.option(
    "--key",
    metavar="FINGERPRINT",
    help="Of a signing key of the federation. Default: the key in the signature.",
)
@json_option
def verify(file: Path, signature: Path, key: str | None) -> None:
    """Verify that FILE is the model that the federation signed, without a server.

    Exit code 4 if it is not. Without --key this proves only that file and signature match: compare
    the printed fingerprint with one that you know.

    \b
    Example:
      fedloom model verify best.safetensors --signature best.json --key "$FINGERPRINT"
    """
    word = _read(signature)
    known = word["key"] if key is None else _key(key)
    try:
        Verifier([known]).check(MODEL, word["statement"].encode(), word["message"])
    except Refusal as error:
        raise IntegrityError(f"Expected a good signature in {signature}: {error}") from None
    says = _statement(word["statement"], signature)
    found = _digest(file)
    if found != says["digest"]:
        raise IntegrityError(
            f"Expected the model {says['digest']} in {file}, got {found}: it is another file, or "
            "was changed."
        )
    document = {**says, "fingerprint": fingerprint(word["key"]), "key_is_known": key is not None}
    whose = "" if key else ": compare it with one that you know, or give --key"
    output.emit(
        document,
        lambda: click.echo(
            f"{file} is the model of round {says['round']} of {says['run']} in the federation "
            f"{says['federation']!r}.\nSigned by {document['fingerprint']}{whose}"
        ),
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
    found = json.loads(text)  # the federation has signed it
    if not isinstance(found, dict) or not {"digest", "run", "round", "federation"} <= {*found}:
        raise UsageError(f"Expected a statement about a model in {path}, got another.")
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


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
