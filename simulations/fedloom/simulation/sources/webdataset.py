"""WebDataset's shards: tar files whose members of one example are neighbours with one name.

Source: the format as the project webdataset describes it: `KEY.EXTENSION`, where the key ends at
the first dot of the file's name.

Invariant: examples are in the order of the shards' names, and of the members in a shard.
"""

import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.client.data.tables import visible
from fedloom.protocol.errors import UsageError
from fedloom.simulation.data.datasets import pixels
from fedloom.simulation.sources.base import LoadedData, keep_for_test
from fedloom.simulation.sources.converted import Block, converted

_IMAGES = ("png", "jpg", "jpeg", "ppm", "pgm")


def webdataset(
    *,
    seed: int,
    folder: str,
    inputs: str = "npy",
    target: str = "cls",
    client: str | None = None,
    num_classes: int | None = None,
    test: float = 0.2,
) -> LoadedData:
    """Shards of arrays or images with a class number; converted once, then read row by row.

    Args:
        seed: of the experiment.
        folder: of `*.tar` files.
        inputs: extension of inputs: `npy`, or of images (which need Pillow).
        target: extension of targets: text with a whole number.
        client: extension of texts with the owner's name.
        num_classes: needed if no example has the last classes.
        test: fraction of central test examples.

    Raises:
        UsageError: there is no shard, or an example lacks a part or has another form.
    """
    files = visible(Path(folder).expanduser(), "tar")
    if not files:
        raise UsageError(f"Expected WebDataset's shards, *.tar, in {folder}, got none.")

    def blocks() -> Iterator[Block]:
        for file in files:
            for key, members in _examples(file):
                yield _block(members, f"{key} of {file}", inputs, target, client)

    settings = ("webdataset", inputs, target, client)
    loaded = converted(files, settings, blocks, num_classes)
    return keep_for_test(loaded, test=test, seed=seed)


def _examples(file: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Keys, and the content of each extension."""
    now, members = "", dict[str, bytes]()
    try:
        with tarfile.open(file) as tar:
            for member in tar:
                opened = tar.extractfile(member)
                if opened is None:
                    continue
                folder, _, name = member.name.rpartition("/")
                if name.startswith("."):
                    continue
                stem, _, extension = name.partition(".")
                key = f"{folder}/{stem}"
                if key != now and members:
                    yield now, members
                    members = {}
                now = key
                if extension in members:
                    raise UsageError(
                        f"Expected one member .{extension} of {key} of {file}, got two."
                    )
                members[extension] = opened.read()
            if not _is_complete(tar):
                raise UsageError(f"Expected a whole tar file at {file}, got one without its end.")
    except (OSError, EOFError, tarfile.TarError) as error:
        raise UsageError(f"Expected a tar file at {file}, got: {error}.") from error
    if members:
        yield now, members


def _is_complete(tar: tarfile.TarFile) -> bool:
    """Whether a block of zeros, with which each archive ends, follows the last member."""
    assert tar.fileobj is not None
    tar.fileobj.seek(tar.offset)
    return len(tar.fileobj.read(tarfile.BLOCKSIZE)) == tarfile.BLOCKSIZE


def _block(
    members: Mapping[str, bytes], where: str, inputs: str, target: str, client: str | None
) -> Block:
    for extension in (inputs, target, *([] if client is None else [client])):
        if extension not in members:
            raise UsageError(
                f"Expected a member .{extension} of {where}, got {', '.join(members)}. Set inputs, "
                "target and client to extensions."
            )
    try:
        label = np.array([int(members[target].decode())], np.int64)
        x = _decoded(members[inputs], inputs)
        owner = None if client is None else np.array([members[client].decode().strip()])
    except (ValueError, OverflowError, OSError, EOFError) as error:
        raise UsageError(f"{where} cannot be read: {error}.") from error
    return x[np.newaxis], label, owner


def _decoded(content: bytes, extension: str) -> NDArray[Any]:
    if extension not in _IMAGES:
        return np.asarray(np.load(io.BytesIO(content), allow_pickle=False))
    try:
        from PIL import Image  # noqa: PLC0415 - only images need it
    except ImportError as error:
        raise UsageError(
            "Images of WebDataset need Pillow, which is not installed: pip install pillow"
        ) from error
    return np.asarray(pixels(Image.open(io.BytesIO(content))))
