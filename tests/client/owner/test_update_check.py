"""The last check of an update: its body has only tensors that the header names."""

import numpy as np
import pytest

from fedloom.client.owner.policy import Policy, PolicyError
from fedloom.client.owner.update_check import check_leaving
from fedloom.protocol.tensors.container import write_file
from fedloom.protocol.v1 import fleet_pb2

OFFER = fleet_pb2.Task(key=fleet_pb2.TaskKey(run="digits", round=1))


def update(body, *names):
    """An update of the tensor w whose body has tensors of these names."""
    write_file(body, dict.fromkeys(names, np.ones(4, np.float32)))
    header = fleet_pb2.UpdateHeader(size_bytes=body.stat().st_size)
    header.parts.add(tensor="w", values="w")
    return header


def test_an_update_with_an_unnamed_tensor_does_not_leave(tmp_path):
    """The journal records only what the header names."""
    body = tmp_path / "body"
    check_leaving(Policy(), OFFER, update(body, "w"), body)
    with pytest.raises(PolicyError, match="'secret'"):
        check_leaving(Policy(), OFFER, update(body, "w", "secret"), body)
