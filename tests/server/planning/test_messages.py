"""What a reply to a message of a Flower `ServerApp` may be."""

import pytest

from fedloom.protocol import flower_messages
from fedloom.protocol.errors import Code, Refusal
from fedloom.protocol.task_description import FileRef
from fedloom.protocol.v1 import fleet_pb2
from fedloom.server.engine import RoundKind
from fedloom.server.planning.admission import check_update
from fedloom.server.planning.round_plan import RoundPlan
from fedloom.server.planning.spec import parse

SPEC = parse({"flower": {"server_app": "x", "max_message_mb": 0.001}})
PLAN = RoundPlan(
    run="r",
    number=1,
    kind=RoundKind.MESSAGE,
    trained=0,
    spec=SPEC,
    model="0" * 64,
    strategy_state=None,
    manifest=flower_messages.manifest(1000),
    limits=SPEC.message_settings().limits,
    messages={"a": FileRef(digest="a" * 64), "b": FileRef(digest="b" * 64)},
)


def header(*ranges, size=100, model="a"):
    made = fleet_pb2.UpdateHeader(
        client="a", weight=1.0, model_digest=model * 64, size_bytes=size if ranges else 0
    )
    for start, stop in ranges:
        part = made.parts.add(group="message", tensor="message", values=f"{start}")
        part.slice.ranges.add(start=start, stop=stop)
    return made


def test_a_reply_is_the_first_bytes_of_one_part():
    """An update without a body has nothing that the app could be given."""
    assert [part.shape for part in check_update(header((0, 9)), PLAN)] == [(9,)]
    for wrong in (header(), header((1, 9))):
        with pytest.raises(Refusal, match="one part") as refused:
            check_update(wrong, PLAN)
        assert refused.value.code is Code.MALFORMED


def test_a_reply_is_to_the_message_of_its_client_and_not_longer_than_the_run_allows():
    with pytest.raises(Refusal) as refused:
        check_update(header((0, 9), model="b"), PLAN)
    assert refused.value.code is Code.WRONG_MODEL
    with pytest.raises(Refusal) as refused:
        check_update(header((0, 9), size=10_000), PLAN)
    assert refused.value.code is Code.TOO_LARGE
    with pytest.raises(Refusal) as refused:
        check_update(header((0, 1001)), PLAN)
    assert refused.value.code is Code.WRONG_SHAPE
