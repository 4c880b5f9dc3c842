"""Plays, split by speaking role: each role is a client; the task is to predict the next character.

Sources: McMahan et al. (2017), "Communication-efficient learning of deep networks from
decentralized data", section 3, and Caldas et al. (2018), "LEAF", make a client of each speaking
role of Shakespeare and keep the last fifth of its lines for testing; windows of 80 characters are
LEAF's.

The layout: blocks separated by an empty line, each a line `ROLE:` and then the speech. All speeches
of a role, in order and with a newline after each, are one text.

Invariants: a window's targets are its inputs one character later; windows of a role do not
overlap, and those for the test come after those for training.
"""

import re
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.population import Examples
from fedloom.simulation.sources.base import LoadedData, check_test
from fedloom.simulation.sources.download import SHAKESPEARE, locate

VOCABULARY: Final = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""The 65 characters of tinyshakespeare, ordered by code; a token is an index into them."""

_ROLE = re.compile(r"([^\n:]+):(?:\n|$)")


def shakespeare(
    *,
    folder: str | None = None,
    download: bool = False,
    length: int = 80,
    min_windows: int = 2,
    test: float = 0.2,
) -> LoadedData:
    """About a million characters of plays by 299 speaking roles, 232 of which have enough text.

    Args:
        folder: of `tinyshakespeare.txt`; default: `shakespeare` in the cache.
        download: download 1.1 MB if it is missing.
        length: characters of a window.
        min_windows: roles with fewer are not used.
        test: fraction of each role's windows, its last ones, for central test examples.
    """
    where = locate(SHAKESPEARE, folder=folder, download=download)
    return text(
        file=str(where / SHAKESPEARE.files[0].name),
        length=length,
        min_windows=min_windows,
        test=test,
    )


def text(
    *,
    file: str,
    length: int = 80,
    min_windows: int = 2,
    test: float = 0.2,
    vocabulary: str = VOCABULARY,
) -> LoadedData:
    """A text in the layout above.

    Args:
        file: UTF-8.
        length: characters of a window, at least 1.
        min_windows: roles with fewer are not used; at least 1.
        test: fraction of each role's windows, its last ones, for central test examples.
        vocabulary: all characters that may occur; a token is an index into it.

    Raises:
        UsageError: the file is missing, no role has enough text, or a character is unknown.
    """
    if length < 1 or min_windows < 1:
        raise UsageError(f"Expected length and min_windows >= 1, got {length} and {min_windows}.")
    check_test(test)
    try:
        speeches = roles(Path(file).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The text {file} cannot be read: {error}.") from error
    windows = {
        role: _windows(_tokens(speech, vocabulary), length) for role, speech in speeches.items()
    }
    windows = {role: rows for role, rows in windows.items() if len(rows) >= min_windows}
    if not windows:
        raise UsageError(
            f"None of {len(speeches)} roles in {file} has {min_windows} windows of {length} "
            "characters. A speech is a line 'ROLE:', then its "
            "lines, then an empty line."
        )
    # A role always keeps a training window.
    cuts = {
        role: len(rows) - min(_up(test * len(rows)), len(rows) - 1)
        for role, rows in windows.items()
    }
    train = np.concatenate([rows[: cuts[role]] for role, rows in windows.items()])
    last = np.concatenate([rows[cuts[role] :] for role, rows in windows.items()])
    owners = np.repeat(np.array(list(windows)), [cuts[role] for role in windows])
    return LoadedData(
        train=_shifted(train),
        test=_shifted(last) if len(last) else None,
        num_classes=len(vocabulary),
        owners=owners,
    )


def roles(play: str) -> dict[str, str]:
    r"""The text of each role.

    >>> roles("ANNA:\nHello\nthere.\n\nBOB:\nYes?\n\nANNA:\nNo.\n")
    {'ANNA': 'Hello\nthere.\nNo.\n', 'BOB': 'Yes?\n'}
    """
    said: dict[str, list[str]] = {}
    for block in play.replace("\r\n", "\n").split("\n\n"):
        speech = block.strip("\n")
        if match := _ROLE.match(speech):
            said.setdefault(match[1], []).append(speech[match.end() :])
    return {role: "".join(f"{speech}\n" for speech in all_) for role, all_ in said.items()}


def _tokens(said: str, vocabulary: str) -> NDArray[np.int64]:
    codes = np.frombuffer(said.encode("utf-32-le"), np.uint32)
    known = np.array([ord(character) for character in vocabulary], np.uint32)
    order = np.argsort(known)
    places = np.searchsorted(known, codes, sorter=order)
    tokens: NDArray[np.int64] = order[np.minimum(places, len(known) - 1)]
    if (wrong := known[tokens] != codes).any():
        unknown = sorted(set(map(chr, codes[wrong].tolist())))
        raise UsageError(
            f"Expected characters of a vocabulary of {len(vocabulary)}, got {unknown[:10]}. Set "
            "vocabulary to all characters that occur, or remove them."
        )
    return tokens.astype(np.int64)


def _windows(tokens: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Windows of length + 1 tokens, each starts with the last token of the one before."""
    count = max((len(tokens) - 1) // length, 0)
    starts = np.arange(count)[:, np.newaxis] * length
    windows: NDArray[np.int64] = tokens[starts + np.arange(length + 1)]
    return windows


def _shifted(windows: NDArray[np.int64]) -> Examples:
    return Examples(x=np.ascontiguousarray(windows[:, :-1]), y=np.ascontiguousarray(windows[:, 1:]))


def _up(value: float) -> int:
    # Rounded first: 0.2 · 5 is a little more than 1 in binary.
    return int(np.ceil(round(value, 9)))
