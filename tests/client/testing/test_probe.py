"""Monitored calls."""

import threading
import time

from fedloom.client.testing.probe import probe


def test_other_threads_do_not_change_the_count():
    """Threads of the program may end during the call."""
    begun = threading.Event()
    others = [threading.Thread(target=begun.wait) for _ in range(3)]
    for thread in others:
        thread.start()

    def call():
        begun.set()
        for thread in others:
            thread.join()
        mine = threading.Thread(target=time.sleep, args=(0.5,))
        mine.start()
        mine.join()

    assert probe(call).threads == 2
