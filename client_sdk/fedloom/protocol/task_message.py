"""What a task says of a run's settings: whoever offers one says it in these words."""

from hashlib import blake2b

from fedloom.protocol.v1 import fleet_pb2
from fedloom.strategies import Personal, RoundSettings


def task_seed(seed: int, number: int, client: str) -> int:
    """The seed of a client's randomness in a round; depends on nothing else."""
    text = f"{seed}\0{number}\0{client}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1


def train_message(settings: RoundSettings) -> fleet_pb2.TrainSettings:
    """How clients train in a round."""
    return fleet_pb2.TrainSettings(
        epochs=settings.epochs,
        steps=settings.steps,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        clip_norm=settings.clip_norm or 0.0,
        only=settings.only,
        tensor_share=settings.tensor_share if settings.tensor_share < 1 else 0.0,
        widths=settings.widths,
        patience=settings.patience or 0,
        time_budget_s=settings.time_budget_s or 0.0,
    )


def personal_message(personal: Personal) -> fleet_pb2.Personal:
    """What is each client's own."""
    return fleet_pb2.Personal(
        keep=personal.keep,
        head_epochs=personal.head_epochs,
        name="" if personal.own_model is None else personal.name,
        settings=personal.numbers(),
    )


def scalar_message(value: bool | float | str) -> fleet_pb2.Scalar:
    """A value of a run's config."""
    match value:
        case bool():
            return fleet_pb2.Scalar(bool_value=value)
        case int():
            return fleet_pb2.Scalar(int_value=value)
        case float():
            return fleet_pb2.Scalar(double_value=value)
        case str():
            return fleet_pb2.Scalar(string_value=value)
