"""How Flower's SuperNodes are named among the clients of a server, and what they lack."""

from collections.abc import Mapping

KIND, SUPERNODE = "kind", "supernode"
"""Label and value by which a bridge names such clients; a claim, like all labels of devices."""

LOSSES = (
    "an interrupted upload begins anew, no policy of the device's owner applies, the device does "
    "not check the server's signatures, and clipping, noise and compression happen in the bridge"
)
"""What SuperNodes lack that agents have; completes a sentence."""


def is_supernode(own_labels: Mapping[str, str]) -> bool:
    """Whether a client's own labels say that it is a SuperNode."""
    return own_labels.get(KIND) == SUPERNODE
