"""Client rules: changes to plain local training on a device.

A rule may change each gradient, may keep memory on the device from round to round, may get slots
of the server's state beside the model, and decides what is sent. It uses arithmetic operators only,
so the same rule serves numpy arrays and torch tensors.

    class MyProx(ClientRule):
        name = "my_prox"
        mu: float = 0.01

        def gradient(self, grad, at):
            return grad + self.mu * (at.param - at.anchor)

References:
    McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized
    Data, https://arxiv.org/abs/1602.05629.
    Li et al. 2020, Federated Optimization in Heterogeneous Networks (FedProx),
    https://arxiv.org/abs/1812.06127, equation 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from numpy.typing import NDArray

from fedloom.strategies.checks import check_number
from fedloom.strategies.exact.partial import DELTA
from fedloom.strategies.local_optimizers import LocalSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorAtStep:
    """One trained tensor, at a step of local training; of numpy or of torch.

    Attributes:
        param: the current parameters.
        anchor: the parameters as received; None if the rule does not need them (`needs_anchor`).
        received: slot → values received beside them; zeros at the start of a run.
        memory: slot → values that this device keeps; zeros in its first round.
        full_gradient: of the mean loss over all local examples at the anchor, if the rule needs it.
    """

    param: Any
    anchor: Any
    received: Mapping[str, Any] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    full_gradient: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWork:
    """The work of a device in a round.

    Attributes:
        steps: ‖a‖₁, the sum of the gradients' weights in the update divided by the learning rate:
            the number of steps of plain gradient descent; see `local_optimizers`.
        learning_rate: of the task.
        num_examples: trained on.
        initial_loss: mean loss over the local examples before training, if the rule needs it.
        norm: Euclidean norm of the whole update, if the rule sends scalars.
    """

    steps: float
    learning_rate: float
    num_examples: int
    initial_loss: float = 0.0
    norm: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTensor:
    """One tensor after local training; numpy, in the tensor's shape.

    For an `elementwise` rule it may be a one-dimensional piece of the tensor.

    Attributes:
        delta: trained minus received parameters.
        received: as in `TensorAtStep`.
        memory: as in `TensorAtStep`.
        full_gradient: as in `TensorAtStep`.
        work: of the device.
    """

    delta: NDArray[Any]
    received: Mapping[str, NDArray[Any]]
    memory: Mapping[str, NDArray[Any]]
    full_gradient: NDArray[Any] | None
    work: LocalWork


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTensor:
    """The results of one tensor.

    Attributes:
        groups: group → values to send, in the tensor's shape.
        memory: slot → values to keep until this client's next round.
    """

    groups: Mapping[str, NDArray[Any]]
    memory: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRule:
    """The base of client rules: plain local training. Fields are settings, all numbers.

    `receives`, `remembers` and more than one group are for tensors with gradients; for others, such
    as BatchNorm's statistics, only the delta is sent.
    """

    name: ClassVar[str]
    receives: ClassVar[tuple[str, ...]] = ()
    """Slots of the server's state that come with the model."""
    remembers: ClassVar[tuple[str, ...]] = ()
    """Slots of memory that the device keeps."""
    groups: ClassVar[tuple[str, ...]] = (DELTA,)
    """Groups of tensors that are sent."""
    scalars: ClassVar[tuple[str, ...]] = ()
    """Numbers that are sent."""
    needs_loss: ClassVar[bool] = False
    """Whether the rule needs `LocalWork.initial_loss`: one more pass over the examples."""
    needs_gradient: ClassVar[bool] = False
    """Whether the rule needs `full_gradient`: one more pass over the examples."""

    needs_anchor: ClassVar[bool] = True
    """Whether `gradient` reads the anchor; if not, a device keeps no copy of the model."""

    elementwise: ClassVar[bool] = False
    """Whether `gradient` and `after` compute each value from values at the same place alone: then a
    device passes large tensors in pieces, and needs no memory for the whole."""

    local_steps: ClassVar[LocalSteps] = LocalSteps.ANY
    """The most general local steps that its formulas hold for; fewer than any need `because`."""
    because: ClassVar[str] = ""
    """Why no more general ones, for messages: what the rule does."""

    bears_delay: ClassVar[bool] = True
    """Whether it converges with codecs that send parts of an update rounds later."""

    picks: ClassVar[bool] = False
    """Whether a client trains one of several models, the run's or one that it `receives`: then an
    update has one group, `groups[number]`, and evaluation needs the models too."""

    def settings(self) -> dict[str, float]:
        """Return the settings that rebuild this rule in the registry."""
        return {field.name: float(getattr(self, field.name)) for field in fields(self)}

    def gradient(self, grad: Any, at: TensorAtStep) -> Any:  # noqa: ARG002 - what subclasses use
        """Return the gradient for the step of one tensor.

        Args:
            grad: gradient of the loss at `at.param`.
            at: the tensor.
        """
        return grad

    def after(self, at: TrainedTensor) -> SentTensor:
        """Return the values to send and to keep of one tensor with gradients."""
        return SentTensor(groups={DELTA: at.delta})

    def numbers(self, work: LocalWork) -> dict[str, float]:  # noqa: ARG002 - what subclasses use
        """Return the scalars to send."""
        return {}

    @property
    def is_elementary(self) -> bool:
        """Whether the rule only changes gradients: it sends the delta and keeps nothing."""
        return not (
            self.receives
            or self.remembers
            or self.scalars
            or self.needs_gradient
            or type(self).after is not ClientRule.after
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain(ClientRule):
    """Plain local training (McMahan et al. 2017)."""

    name: ClassVar[str] = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class FedProx(ClientRule):
    """Local training on loss + mu/2 · |param - anchor|² (Li et al. 2020).

    Attributes:
        mu: weight of the proximal term, >= 0; 0 is plain training. The paper tries 0.001 to 1.

    Raises:
        TypeError: mu is not a number.
        ValueError: mu is out of range.
    """

    name: ClassVar[str] = "fedprox"
    elementwise: ClassVar[bool] = True
    mu: float

    def __post_init__(self) -> None:
        check_number("mu", self.mu, at_least=0)

    def gradient(self, grad: Any, at: TensorAtStep) -> Any:
        """Return grad + mu · (param - anchor)."""
        return grad + self.mu * (at.param - at.anchor)
