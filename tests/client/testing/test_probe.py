"""What a watched call is held to have used."""

import threading
import time

from fedloom.client.testing.probe import probe


def test_a_thread_of_others_that_ends_meanwhile_hides_none_of_the_calls():
    """A program around the check has threads of its own, that come and go."""
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
