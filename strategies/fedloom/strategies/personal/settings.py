"""Settings of personalisation: tensors that are never sent, or an own model of each client.

FedBN keeps the normalisation layers, FedPer and FedRep the last layers; FedRep trains these first,
with the others frozen.

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

from fedloom.strategies.checks import check_count, check_patterns
from fedloom.strategies.personal.own_models import Apfl, Ditto, OwnModel
from fedloom.strategies.setting_checks import lookup

KEPT: Final = "kept"
"""The slot of the tensors that a client keeps."""
OWN: Final = "own"
"""The slot of the parameters of a client's own model."""
OWN_BUFFERS: Final = "own_buffers"
"""The slot of its own model's other tensors, such as BatchNorm's statistics."""
MIX: Final = "mix"
"""The slot of the share of its own model: float64 [], under the same name."""
NAMES: Final = ("shared", "ditto", "apfl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Personal:
    """Settings of personalisation.

    Attributes:
        keep: globs over names of tensors, `*` for any text, such as `head.*`: tensors that are
            never sent. Each client continues from its values of its last counted round, in
            training and in evaluation; the first time from the server's.
        head_epochs: passes over the examples that train the kept tensors alone, before `[train]`
            trains the others alone; 0 trains them all together.
        name: `shared`, or the method of own models: `ditto` or `apfl`. Clients evaluate these.
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
        object.__setattr__(self, "keep", check_patterns("keep", self.keep))  # TOML has lists
        check_count("head_epochs", self.head_epochs, at_least=0)
        if self.head_epochs and not self.keep:
            raise ValueError("Expected keep to name the head that head_epochs trains, got none.")
        known = {name: name for name in NAMES}
        object.__setattr__(self, "name", lookup("personal.name as a known name", self.name, known))
        if self.own_model is not None and self.keep:
            raise ValueError(
                f"Expected no personal.keep with {self.name}, whose clients keep a whole model, "
                f"got {', '.join(self.keep)}. Leave one of them out."
            )

    @property
    def own_model(self) -> OwnModel | None:
        """The method of own models."""
        match self.name:
            case "ditto":
                return Ditto(pull=self.pull)
            case "apfl":
                return Apfl(mix=self.mix, mix_learning_rate=self.mix_learning_rate)
            case _:
                return None

    @property
    def remembers(self) -> bool:
        """Whether clients keep tensors from round to round."""
        return bool(self.keep) or self.own_model is not None

    def numbers(self) -> dict[str, float]:
        """Return the settings of a client's own model, by name."""
        if self.own_model is None:
            return {}
        names = ("pull", "mix", "mix_learning_rate")
        return {name: float(getattr(self, name)) for name in names}

    @property
    def special(self) -> tuple[str, ...]:
        """Names of settings that change plain local training."""
        return tuple(
            f"personal.{name}"
            for name, there in (("keep", bool(self.keep)), ("name", self.own_model is not None))
            if there
        )

    def kept(self, names: Iterable[str]) -> frozenset[str]:
        """Return those of these tensors that clients keep."""
        if not self.keep:
            return frozenset()
        return frozenset(n for n in names if any(fnmatchcase(n, glob) for glob in self.keep))

    def check(self, names: Iterable[str]) -> None:
        """Check a model against these settings.

        Raises:
            ValueError: a glob matches no tensor, or no tensor is left to send.
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
