"""docs/protocol.md matches the code."""

import re
from pathlib import Path

import pytest

from fedloom.protocol.errors import MAX_MESSAGE, Code
from fedloom.protocol.tensors import container
from fedloom.protocol.transport import methods as wire
from fedloom.protocol.transport.status import grpc_status
from fedloom.protocol.updates import header
from fedloom.protocol.version import PROTOCOL_VERSIONS, SERVER_VERSIONS
from fedloom.server.fleet import calls, sessions, transfer_slots

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")


def rows_after(marker):
    """The cells of the table after a marker or a heading, without its header row."""
    lines = PAGE.split(marker)[1].strip().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table[2:]


REFUSALS = {row[0].strip("`"): row[1:] for row in rows_after("<!-- refusals -->")}


def test_the_page_lists_the_codes_of_the_code():
    """Every code once, in order of definition, and no other."""
    assert list(REFUSALS) == [code.value for code in Code]


@pytest.mark.parametrize("code", list(Code))
def test_the_page_has_the_meaning_of_each_code_for_a_client(code):
    """Its status, and our client's reaction."""
    status, when, then = REFUSALS[code.value]
    assert status == f"`{grpc_status(code).name}`"
    assert when
    assert then == code.reaction


def test_the_page_lists_the_methods():
    methods = [row[0].strip("`") for row in rows_after("## Services")]
    assert sorted(methods) == sorted(
        [
            *(wire.ENROL, wire.RENEW_LATE, wire.ATTEND, wire.RENEW),
            *(wire.DOWNLOAD, wire.PROMOTED, wire.UPLOAD, wire.LEAVE, wire.MEASURE),
        ]
    )


def test_the_page_states_the_limits_of_the_code():
    limits = {row[0]: row[1] for row in rows_after("## Limits")}
    assert limits["a message"].startswith(f"{wire.MAX_MESSAGE_BYTES >> 20} MiB")
    assert limits["a refusal's message"] == f"{MAX_MESSAGE} characters"
    assert limits["metrics"].startswith(f"{header.MAX_METRICS} ")
    assert f"names of {header.MAX_NAME} characters" in limits["metrics"]
    assert header.MAX_METRIC == 1e100
    assert header.MAX_EXAMPLES == 1 << 42
    assert calls.READ_TIMEOUT_S == 60
    assert limits["calls of a client at once"].startswith(f"{sessions.MAX_CALLS},")
    parked = limits["transfers of a client that stand still"]
    assert parked.startswith(f"{transfer_slots.MAX_PARKED} in each direction")
    assert f"for {transfer_slots.IDLE_S} s. After that" in PAGE.replace("\n  ", " ")
    slow = (transfer_slots.SLOW_BYTES_PER_S, transfer_slots.SLOW_CHUNK_BYTES)
    assert (*slow, transfer_slots.JUDGED_AFTER_S) == (1 << 20, 64 << 10, 2.0)
    assert f"{transfer_slots.SLOW_PER_FAST} times as many slow ones" in PAGE
    opened = (transfer_slots.FEW, transfer_slots.BUSY, transfer_slots.ENOUGH_BYTES_PER_S)
    assert opened == (2, 0.4, 100 << 20)
    assert (
        f"every {transfer_slots.LOOK_S} s, unless the server's\n  event loop is busy for 40 %"
        in PAGE
    )
    assert f"at most {container.MAX_DIMENSIONS} whole numbers" in PAGE
    assert PROTOCOL_VERSIONS == SERVER_VERSIONS[:1] == (3,)
    assert PAGE.startswith("# The wire format, version 3\n")


def test_the_page_lists_the_dtypes_and_the_vectors():
    """Every dtype of the container, and every file of vectors."""
    listed = PAGE.split("Dtypes are ")[1].split(".\n")[0]
    assert re.findall(r"`(\w+)`", listed) == list(container.DTYPES)
    files = {row[0].strip("`") for row in rows_after("## Test vectors")}
    assert files == {p.name for p in (ROOT / "tests" / "protocol" / "vectors").iterdir()}
