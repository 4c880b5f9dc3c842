"""Reads TOML files with uniform errors, and writes settings, which Python's library does not.

Source: TOML 1.0.0, https://toml.io/en/v1.0.0. Invariant: `parse(dumps(x)) == x` for tables of
strings, numbers, booleans, lists and tables without None, which TOML cannot express.
"""

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fedloom.protocol.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

_BARE = re.compile(r"[A-Za-z0-9_-]+")


# ---- reading ---------------------------------------------------------------------------------


def read(path: "Path", what: str, *, missing: str = "") -> dict[str, Any]:
    """Read a TOML file.

    Args:
        path: of the file.
        what: content of the file, for messages, such as `an experiment`.
        missing: what to do if there is no such file; an instruction without a full stop.

    Raises:
        UsageError: it is missing, not readable, or not TOML in UTF-8.
    """
    document = read_optional(path, what)
    if document is None:
        hint = f": {missing}" if missing else ""
        raise UsageError(f"Expected {what} in {path}, got no such file{hint}.")
    return document


def read_optional(path: "Path", what: str) -> dict[str, Any] | None:
    """As `read`; None if there is no such file."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: Expected {what} as text in UTF-8, got the byte "
            f"{error.object[error.start]:#04x} at {error.start}. Restore the file, or write it "
            "again."
        ) from None
    except IsADirectoryError:
        raise UsageError(f"Expected {what} in a file, got the folder {path}.") from None
    except OSError as error:
        raise UsageError(
            f"{path}: Expected {what} in a file that this user may read, got: {error.strerror}. "
            "Run the command as the file's owner, or change its owner or mode."
        ) from None
    try:
        return parse(text, what)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def parse(text: str, what: str) -> dict[str, Any]:
    """Read TOML.

    Args:
        text: the document.
        what: content of the document, for messages.

    Raises:
        UsageError: it is not TOML.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UsageError(f"Expected {what} as TOML with fewer tables in tables.") from None
    except ValueError as error:  # TOMLDecodeError, or an integer of thousands of digits
        raise UsageError(
            f"Expected {what} as TOML, got: {error}. Correct that line, or the end of the file."
        ) from None


# ---- writing ---------------------------------------------------------------------------------


def dumps(table: Mapping[str, Any]) -> str:
    """Write settings.

    Args:
        table: by name; None is left out, and values that TOML cannot express (paths,
            enumerations) become strings.
    """
    return "\n".join(_table(table, ())).strip("\n") + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    inner = {name: value for name, value in table.items() if isinstance(value, Mapping)}
    plain = {n: v for n, v in table.items() if n not in inner and v is not None}
    if path and (plain or not inner):
        yield f"\n[{'.'.join(map(_key, path))}]"
    for name, value in plain.items():
        yield f"{_key(name)} = {text_of(value)}"
    for name, value in inner.items():
        yield from _table(value, (*path, name))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def _string(text: str) -> str:
    # JSON's escapes are valid TOML, except DEL (must be escaped) and lone surrogates (cannot be).
    text = text.encode("utf-8", "replace").decode()
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def text_of(value: Any) -> str:
    """Write a value; `unset` stands for None, which is left out of lists and tables."""
    match value:
        case None | bool():
            return {None: "unset", True: "true", False: "false"}[value]
        case int():
            return str(int(value))
        case float():
            return repr(float(value)) if math.isfinite(value) else str(float(value))
        case list() | tuple():
            return f"[{', '.join(text_of(inner) for inner in value if inner is not None)}]"
        case Mapping():
            pairs = (f"{_key(n)} = {text_of(v)}" for n, v in value.items() if v is not None)
            return f"{{{', '.join(pairs)}}}"
        case _:
            return _string(str(value))
