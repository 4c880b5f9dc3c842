"""The settings of `[budgets]`."""

from dataclasses import dataclass

from fedloom.client.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """What this device may be used for at most."""

    threads: int | None = setting(
        None, doc="of torch and of numpy's linear algebra while training", least=1, example=2
    )
    nice: int = setting(
        0, doc="of the training: the higher, the more it steps back for others", least=0, most=19
    )
    idle_io: bool = setting(
        False, doc="read and write for the training only while nobody else does (Linux)"
    )
    memory_mb: float | None = setting(
        None, doc="of the whole process, in MB (10^6 bytes)", least=1, example=1000.0
    )
    memory_factor: float = setting(
        4.0,
        doc="how many times the model's size a training takes; an offer that does not fit into "
        "memory_mb, or into the memory that is free, is declined; 0: none ever is",
        least=0,
    )
    disk_mb: float | None = setting(
        None,
        doc="of state_dir, in MB (10^6 bytes): old models, updates, checkpoints and memories make "
        "room, and an offer that does not fit even so is declined",
        least=1,
        example=2000.0,
    )
    download_mbit_s: float | None = setting(
        None, doc="on average, in 10^6 bit/s", least=0.02, example=8.0
    )
    upload_mbit_s: float | None = setting(
        None, doc="on average, in 10^6 bit/s", least=0.02, example=2.0
    )
    training_s: float | None = setting(
        None,
        doc="longest training, in seconds; what there is by then is sent where the client rule "
        "allows it, else the task is given up",
        least=0.01,
        example=600.0,
    )
