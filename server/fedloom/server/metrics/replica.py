"""What one server of several tells Prometheus while it does not drive.

Who drives, and what a gate does: the console's metrics are those of the server that drives alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedloom.server.metrics.gauges import Values
from fedloom.server.metrics.meters import Meters


@dataclass(frozen=True, slots=True)
class GateState:
    """A gate as the driver sees it.

    Attributes:
        name: of its machine.
        streams: of devices there.
    """

    name: str
    streams: int


@dataclass(frozen=True, slots=True)
class Serving:
    """What a gate measures.

    Attributes:
        meters: its counters and histograms.
        values: returns its gauges.
    """

    meters: Meters
    values: Callable[[], Values]


@dataclass(slots=True)
class ReplicaState:
    """A replica's view of who drives.

    Attributes:
        epoch: of the lease of the server that drives; 0 while it is not known.
        drives: whether that is this server.
        name: of this machine.
        gate: id of the gate in this process; empty for none.
        gates: the others, known to this server while it drives.
        streams: returns the number of devices' streams at this replica itself; None while it
            serves no devices.
        serving: what this server measures as a gate; None while it is none.
    """

    epoch: int = 0
    drives: bool = False
    name: str = ""
    gate: str = ""
    gates: Sequence[GateState] = ()
    streams: Callable[[], int] | None = None
    serving: Serving | None = None

    def values(self) -> Values:
        """Of its gauges."""
        epoch = [((), float(self.epoch))] if self.epoch else []
        gates = [((), float(len(self.gates)))] if self.drives else []
        return {
            "fedloom_driver_epoch": epoch,
            "fedloom_replica_drives": [((), self.drives)],
            "fedloom_gates": gates,
            "fedloom_streams": [] if self.streams is None else [((), float(self.streams()))],
        }
