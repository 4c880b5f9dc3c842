"""The kinds of a new folder: the libraries that they need, and the settings of their runs."""

import importlib.util
import re
from dataclasses import dataclass

from fedloom.client.data.columns import TableColumns, TextColumn
from fedloom.protocol.errors import UsageError


@dataclass(frozen=True, slots=True)
class ProjectKind:
    """A kind of training code.

    Attributes:
        name: of its option, and of the extra that installs its library.
        title: the library, in words.
        module: its import; empty if the base installation is enough.
        learning_rate: for numbers and for classes with few inputs.
        steep: the learning rate times the number of inputs is at most this; training of linear
            models diverges beyond. None: no limit.
    """

    name: str
    title: str
    module: str
    learning_rate: tuple[float, float]
    steep: float | None = None

    @property
    def requirement(self) -> str:
        """What pip installs on a device."""
        return f"fedloom[{self.name}]" if self.module else "fedloom"

    def learning_rate_of(self, columns: TableColumns) -> float:
        """A learning rate that does not diverge on scaled inputs."""
        rate = self.learning_rate[isinstance(columns.target, TextColumn)]
        return rate if self.steep is None else min(rate, round(self.steep / columns.num_inputs, 4))


KINDS = {
    kind.name: kind
    for kind in (
        ProjectKind("torch", "PyTorch", "torch", (0.02, 0.1)),
        ProjectKind("sklearn", "scikit-learn", "sklearn", (0.01, 0.02), 0.2),
        ProjectKind("numpy", "numpy", "", (0.05, 0.5), 0.5),
        ProjectKind("hf", "transformers", "transformers", (0.005, 0.005)),
    )
}
"""By name; the first three in the order in which a default is chosen."""


def installed(kind: ProjectKind) -> bool:
    """Whether the library of a kind is installed here."""
    return not kind.module or importlib.util.find_spec(kind.module) is not None


def choose(asked: str | None) -> ProjectKind:
    """The kind that was asked for; otherwise the first that is installed.

    Raises:
        UsageError: its library is not installed.
    """
    if asked is None:
        return next(kind for name, kind in KINDS.items() if name != "hf" and installed(kind))
    if not installed(kind := KINDS[asked]):
        raise UsageError(
            f"Expected {kind.title} for --{asked}, got no module {kind.module}: pip install "
            f"'{kind.requirement}', or use --numpy, which needs nothing more."
        )
    return kind


def requirement_of(code: str) -> str:
    """What pip installs on a device for training code, by what it imports."""
    imported = set(re.findall(r"^\s*(?:import|from)\s+(\w+)", code, re.MULTILINE))
    order = (KINDS["hf"], KINDS["torch"], KINDS["sklearn"], KINDS["numpy"])
    return next(kind for kind in order if not kind.module or kind.module in imported).requirement
