"""Hugging Face data sets, loaded by flwr-datasets.

The split over clients is fedloom's, seeded like any other. flwr-datasets reports its use to its
makers unless FLWR_TELEMETRY_ENABLED=0 is set.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.simulation.data.datasets import pieces
from fedloom.simulation.data.population import Examples
from fedloom.simulation.sources.base import LoadedData, as_inputs, as_targets, keep_for_test
from fedloom.simulation.sources.columns import LENGTH, WORDS, Columns, Reader
from fedloom.simulation.sources.converted import Block, converted
from fedloom.simulation.sources.finite import flaws


def huggingface(
    *,
    seed: int,
    dataset: str,
    inputs: str | Sequence[str] | None = None,
    target: str | None = None,
    subset: str | None = None,
    client: str | None = None,
    train_split: str = "train",
    test_split: str | None = "test",
    test: float = 0.2,
    text: str | None = None,
    length: int = LENGTH,
    words: int = WORDS,
    unit: str = "words",
    columns: Callable[[Any], Any] | str | None = None,
    mapped: bool = False,
) -> LoadedData:
    """A data set of the Hugging Face hub, of images, numbers, texts or mixed columns.

    Args:
        seed: of the experiment.
        dataset: its name on the hub, such as `ylecun/mnist`.
        inputs: column of inputs: images, or lists of numbers of one length; or several columns of
            numbers, booleans and categories, which become one vector.
        target: column of targets: class numbers, names of classes, or values.
        subset: if the set has several.
        client: column of owners.
        train_split: examples for the clients.
        test_split: central test examples; "" for none.
        test: fraction of central test examples if `test_split` is "".
        text: column of texts, and how they become tokens, as in
            `fedloom.simulation.sources.columns.Columns`.
        length: as there.
        words: as there.
        unit: as there.
        columns: as there.
        mapped: for data larger than memory: converted once, some rows at a time; then inputs are
            read row by row.

    Raises:
        UsageError: flwr-datasets is not installed, there is no such column, or its values are
            missing or of another kind.
        UnavailableError: the download failed.
    """
    wanted = Columns(
        inputs=inputs, text=text, target=target, client=client, length=length, words=words,
        unit=unit, columns=columns,
    )  # fmt: skip
    try:
        # By name: it is an optional dependency.
        flower = import_module("flwr_datasets")
    except ImportError as error:
        raise UsageError(
            "Hugging Face data sets are loaded by flwr-datasets, which is not installed. Install "
            "it with: pip install 'flwr-datasets[vision]'"
        ) from error
    federated = flower.FederatedDataset(
        dataset=dataset, subset=subset, partitioners={train_split: 1}, shuffle=False
    )
    train = _split(federated, train_split)
    tests = {test_split: _split(federated, test_split)} if test_split else {}
    reader = wanted.reader({train_split: train}, tests)
    if mapped:
        loaded = on_disk(train, train_split, reader)
        if not test_split:
            return keep_for_test(loaded, test=test, seed=seed)
        return with_tests(loaded, on_disk(tests[test_split], test_split, reader))
    x, y = reader.read(train, train_split)
    targets, classes = as_targets(y, len(reader.class_names) or None)
    examples = Examples(x=as_inputs(x), y=targets)
    loaded = LoadedData(
        train=examples,
        num_classes=classes,
        owners=reader.owners(train),
        columns=reader.names,
        class_names=reader.class_names,
        flaws=flaws(examples, (x, y), _names(train_split, reader)),
    )
    if not test_split:
        return keep_for_test(loaded, test=test, seed=seed)
    x, y = reader.read(tests[test_split], test_split)
    examples = Examples(x=as_inputs(x), y=as_targets(y, classes)[0])
    found = flaws(examples, (x, y), _names(test_split, reader))
    return replace(loaded, test=examples, flaws=(*loaded.flaws, *found))


def on_disk(data: Any, where: str, reader: Reader) -> LoadedData:
    """A data set whose inputs stay in a file: its own rows, converted once.

    Raises:
        UsageError: a cell is not valid, or a function makes the examples.
    """
    fingerprint = getattr(data, "_fingerprint", None)
    if reader.row is not None or data.format["type"] == "custom" or fingerprint is None:
        raise UsageError(
            "Expected a data set without columns and set_transform beside mapped, whose changes "
            "would not be noticed. Apply the function with its map first."
        )

    def blocks() -> Iterator[Block]:
        for piece, place in pieces(data, where):
            yield *reader.read(piece, place), reader.owners(piece)

    files = [Path(each["filename"]) for each in data.cache_files]
    settings = ("huggingface", fingerprint, repr(reader))
    loaded = converted(files, settings, blocks, len(reader.class_names) or None)
    return replace(loaded, columns=reader.names, class_names=reader.class_names)


def with_tests(loaded: LoadedData, tests: LoadedData) -> LoadedData:
    """Central test examples beside those for the clients, with the classes of both."""
    classes = None
    if loaded.num_classes is not None and tests.num_classes is not None:
        classes = max(loaded.num_classes, tests.num_classes)
    flawed = (*loaded.flaws, *tests.flaws)
    return replace(loaded, test=tests.train, num_classes=classes, flaws=flawed)


def _names(split: str, reader: Reader) -> tuple[str, str]:
    used = reader.settings
    inputs, target = used.text or used.inputs or "x", used.target or "y"
    return f"column {inputs!r} of {split}", f"column {target!r} of {split}"


def _split(federated: Any, name: str) -> Any:
    try:
        return federated.load_split(name)
    except (ValueError, KeyError) as error:
        raise UsageError(
            f"The split {name!r} cannot be loaded: {error}. Set train_split and test_split."
        ) from error
    except OSError as error:
        raise UnavailableError(f"The split {name!r} cannot be loaded: {error}.") from error
