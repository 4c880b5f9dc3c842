"""The settings of `[budgets]`."""

from dataclasses import dataclass

from fedloom.protocol.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Limits on the resources that the client uses."""

    threads: int | None = setting(
        None,
        doc="threads of torch and of numpy's linear algebra while training",
        least=1,
        example=2,
    )
    nice: int = setting(
        0,
        doc="niceness of the training; higher values give way to other processes",
        least=0,
        most=19,
    )
    idle_io: bool = setting(False, doc="use the idle I/O priority for the training (Linux)")
    memory_mb: float | None = setting(
        None,
        doc="largest memory of the agent and its training process together, MB (10^6 bytes); a "
        "training that exceeds it is ended",
        least=1,
        example=1000.0,
    )
    memory_factor: float = setting(
        4.0,
        doc="memory that a training needs, in sizes of the model; an offer that does not fit into "
        "memory_mb, or into free memory, is declined; 0: never",
        least=0,
    )
    disk_mb: float | None = setting(
        None,
        doc="largest size of state_dir, MB (10^6 bytes); old models, updates, checkpoints and "
        "memories are deleted first, and an offer that still does not fit is declined",
        least=1,
        example=2000.0,
    )
    download_mbit_s: float | None = setting(
        None, doc="average download rate, 10^6 bit/s", least=0.02, example=8.0
    )
    upload_mbit_s: float | None = setting(
        None, doc="average upload rate, 10^6 bit/s", least=0.02, example=2.0
    )
    training_s: float | None = setting(
        None,
        doc="longest training, seconds; then the partial result is sent if the client rule allows "
        "it, otherwise the task fails",
        least=0.01,
        example=600.0,
    )
