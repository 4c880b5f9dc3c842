"""The storage of a server's state directory, for tests beside the server."""

from fedloom.server.ledger import Ledger
from fedloom.server.storage.opening import open_storage


def storage_of(state_dir, config):
    """Open it with its ledger; its `close` closes both."""
    return open_storage(state_dir, config, Ledger.in_directory(state_dir, config.database))
