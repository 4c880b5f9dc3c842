"""Stop-watches on functions: when each call began and ended, and the CPU time that it took itself.

The CPU time is of the calling thread, without that of watched calls within the call.
"""

import functools
import threading
import time
from typing import NamedTuple

_open = threading.local()


class Event(NamedTuple):
    """A watched call.

    Attributes:
        name: of the function.
        begin: by the monotonic clock, which all processes of a machine share.
        end: likewise.
        cpu_s: seconds of CPU time without watched calls within it.
        process_cpu_s: seconds of CPU time of the whole process, until its end.
    """

    name: str
    begin: float
    end: float
    cpu_s: float
    process_cpu_s: float

    def line(self):
        numbers = "\t".join(f"{number:.6f}" for number in self[1:])
        return f"{self.name}\t{numbers}\n"

    @classmethod
    def of_line(cls, line):
        name, *numbers = line.split("\t")
        return cls(name, *map(float, numbers))


def watch(owner, name, file, label=""):
    """Write an event to a file for each call of `owner.name`."""
    call = getattr(owner, name)

    @functools.wraps(call)
    def watched(*args, **kwargs):
        above, _open.within = getattr(_open, "within", 0.0), 0.0
        begin, cpu = time.monotonic(), time.thread_time()
        try:
            return call(*args, **kwargs)
        finally:
            cpu = time.thread_time() - cpu
            own, whole = cpu - _open.within, time.process_time()
            event = Event(label or name, begin, time.monotonic(), own, whole)
            _open.within = above + cpu
            file.write(event.line())

    setattr(owner, name, watched)


def events_in(path):
    """The events of a file."""
    return [Event.of_line(line) for line in path.read_text().splitlines()]
