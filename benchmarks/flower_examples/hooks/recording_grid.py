"""A Grid that records what another one receives; apart from `recorded`, which flwr imports."""

from collections import Counter

import fixed_seeds
from flwr.serverapp.grid import Grid
from recorded import put, settings


class Recording(Grid):
    """A Grid that records each reply, and gives nodes and replies in the order of partitions."""

    def __init__(self, grid):
        self._grid = grid
        self._order = {node: place for place, node in enumerate(fixed_seeds.nodes())}
        self._counts = Counter()

    run = property(lambda self: self._grid.run)

    def set_run(self, run):
        self._grid.set_run(run)

    def create_message(self, *arguments, **settings):
        return self._grid.create_message(*arguments, **settings)

    def get_node_ids(self):
        return sorted(self._grid.get_node_ids(), key=self._order.__getitem__)

    def push_messages(self, messages):
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids):
        return self._record(self._grid.pull_messages(message_ids))

    def send_and_receive(self, messages, *, timeout=None):
        return self._record(self._grid.send_and_receive(messages, timeout=timeout))

    def _record(self, replies):
        replies = sorted(replies, key=lambda reply: self._order[reply.metadata.src_node_id])
        for reply in replies:
            node = self._order[reply.metadata.src_node_id]
            kind = f"{reply.metadata.message_type}/{node}"
            self._counts[kind] += 1
            name = f"{kind}/{self._counts[kind]}"
            if reply.has_error():
                put(f"error/{name}", str(reply.error.reason))
            elif settings()["compare_replies"]:
                put(f"reply/{name}", reply.content)
        return replies
