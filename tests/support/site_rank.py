"""A rank that does nothing until it is stopped: python -m support.site_rank PAUSE_S.

Rank 0 ends this long after the signal, like an agent that closes its connection.
"""

import signal
import sys
import threading
import time

from fedloom.client.torch.site import follow, join
from fedloom.client.training.ranks import ranks
from support.site_client import client


def say_when_ready():
    """Print a line once SIGTERM is handled."""
    while signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        time.sleep(0.01)
    print("ready", flush=True)


def main(pause_s):
    place, told = ranks(), threading.Event()
    group = join(client, place)
    threading.Thread(target=say_when_ready, daemon=True).start()
    try:
        if place.rank:
            follow(client, group)
        else:
            signal.signal(signal.SIGTERM, lambda *_: told.set())
            told.wait()
            time.sleep(pause_s)
    finally:
        group.close()


if __name__ == "__main__":
    main(float(sys.argv[1]))
