"""What is each client's own: tensors that are never sent, or a whole model beside the shared one.

FedBN keeps the normalisation layers, FedPer and FedRep the last ones; they differ in the names that
are kept, and FedRep trains them first, with the rest frozen.

References:
    Li et al. 2021, FedBN: Federated Learning on Non-IID Features via Local Batch Normalization,
    https://arxiv.org/abs/2102.07623.
    Arivazhagan et al. 2019, Federated Learning with Personalization Layers (FedPer),
    https://arxiv.org/abs/1912.00818.
    Collins et al. 2021, Exploiting Shared Representations for Personalized Federated Learning
    (FedRep), https://arxiv.org/abs/2102.07078, Algorithm 1.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from fedloom.strategies.checks import check_count
from fedloom.strategies.personal.own_models import Apfl, Ditto, OwnModel

KEPT: Final = "kept"
"""The slot of a client's memory that holds the tensors it keeps."""
OWN: Final = "own"
"""The slot of the parameters of a client's own model."""
OWN_BUFFERS: Final = "own_buffers"
"""The slot of what its own model holds beside parameters, such as BatchNorm's statistics."""
MIX: Final = "mix"
"""The slot of how much of its own model a client mixes in: float64 [], under the same name."""
NAMES: Final = ("shared", "ditto", "apfl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Personal:
    """What is each client's own.

    Attributes:
        keep: globs over names of tensors, `*` for any text, such as `head.*`: tensors that are
            never sent. Each client continues from its own of its last round that counted, in
            training and in evaluation; the first time from what the server sends.
        head_epochs: passes over the examples that train the kept tensors alone, before `[train]`
            trains the others alone; 0 trains them all together.
        name: `shared`, or what trains a model for each client alone beside the shared one: `ditto`
            or `apfl`. Clients are evaluated by it.
        pull: of `ditto`.
        mix: of `apfl`.
        mix_learning_rate: of `apfl`.

    Raises:
        TypeError: a setting has the wrong type.
        ValueError: a setting is out of range.
    """

    keep: tuple[str, ...] = ()
    head_epochs: int = 0
    name: str = NAMES[0]
    pull: float = 0.1
    mix: float = 0.5
    mix_learning_rate: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.keep, str) or not all(isinstance(glob, str) for glob in self.keep):
            raise TypeError(f'Expected keep as a list of globs, ["head.*"], got {self.keep!r}.')
        object.__setattr__(self, "keep", tuple(self.keep))  # TOML has lists
        check_count("head_epochs", self.head_epochs, at_least=0)
        if self.head_epochs and not self.keep:
            raise ValueError("Expected keep to name the head that head_epochs trains, got none.")
        if self.name not in NAMES:
            raise ValueError(f"Expected personal.name of {', '.join(NAMES)}, got {self.name!r}.")
        if self.own_model is not None and self.keep:
            raise ValueError(
                f"Expected no personal.keep with {self.name}, whose clients keep a whole model, "
                f"got {', '.join(self.keep)}. Leave one of them out."
            )

    @property
    def own_model(self) -> OwnModel | None:
        """What trains a model for each client alone."""
        match self.name:
            case "ditto":
                return Ditto(pull=self.pull)
            case "apfl":
                return Apfl(mix=self.mix, mix_learning_rate=self.mix_learning_rate)
            case _:
                return None

    @property
    def remembers(self) -> bool:
        """Whether clients keep something from round to round."""
        return bool(self.keep) or self.own_model is not None

    def numbers(self) -> dict[str, float]:
        """Return the settings of a client's own model, by name."""
        if self.own_model is None:
            return {}
        names = ("pull", "mix", "mix_learning_rate")
        return {name: float(getattr(self, name)) for name in names}

    @property
    def special(self) -> tuple[str, ...]:
        """Names of settings that change what plain local training does."""
        return tuple(
            f"personal.{name}"
            for name, there in (("keep", bool(self.keep)), ("name", self.own_model is not None))
            if there
        )

    def kept(self, names: Iterable[str]) -> frozenset[str]:
        """Return those of these tensors that stay at home."""
        if not self.keep:
            return frozenset()
        return frozenset(n for n in names if any(fnmatchcase(n, glob) for glob in self.keep))

    def check(self, names: Iterable[str]) -> None:
        """Refuse a model that this is not for.

        Raises:
            ValueError: a glob names no tensor of it, or nothing is left to send.
        """
        names = list(names)
        for glob in self.keep:
            if not any(fnmatchcase(name, glob) for name in names):
                raise ValueError(
                    f"Expected personal.keep to name tensors of the model "
                    f"({', '.join(names[:8])}, …), got {glob!r}, which names none."
                )
        if len(self.kept(names)) == len(names):
            raise ValueError(
                f"Expected personal.keep to leave a tensor to send, got {', '.join(self.keep)}, "
                "which keeps all. Keep fewer."
            )
