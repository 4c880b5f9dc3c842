"""The study of compression: bytes on the wire are measured by a relay."""

import asyncio
import json
import socket
import struct

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.protocol.errors import UsageError
from fedloom.simulation import config
from fedloom.simulation.studies import compression, runner
from fedloom.simulation.studies.study import StudyResults, StudyRun
from fedloom.simulation.wire.byte_meter import ByteMeter

RESULTS = StudyResults(
    "fedloom reproduce compression",
    [
        StudyRun(
            row=name,
            column="digits",
            seed=seed,
            values={"accuracy": accuracy + 0.02 * seed, "rounds": 4}
            | ({} if seed else {"up": up, "down": 1000.0}),
        )
        for name, up, accuracy in (
            ("none", 1000.0, 0.9), ("int8", 255.0, 0.89), ("top-1%", 25.0, 0.8)
        )
        for seed in range(2)
    ],
)  # fmt: skip


def test_a_meter_counts_every_byte_in_both_directions():
    async def answering(reader, writer):
        while data := await reader.read(100):
            writer.write(data * 3)
        writer.close()

    async def talk():
        server = await asyncio.start_server(answering, "127.0.0.1", 0)
        meter = ByteMeter(*server.sockets[0].getsockname()[:2])
        relay = await asyncio.start_server(meter.relay, "127.0.0.1", 0)
        async with server, relay:
            for size in (5, 100_000):
                reader, writer = await asyncio.open_connection(*relay.sockets[0].getsockname()[:2])
                writer.write(b"x" * size)
                writer.write_eof()
                assert len(await reader.read(-1)) == 3 * size
                writer.close()
                await writer.wait_closed()
            while meter.open:
                await asyncio.sleep(0)
        return meter.counts

    counts = asyncio.run(talk())
    assert (counts.up, counts.down, counts.connections) == (100_005, 300_015, 2)


def test_a_reset_client_or_a_missing_server_ends_the_connection():
    async def talk():
        with socket.socket() as unused:  # bound, not listening: the port stays reserved
            unused.bind(("127.0.0.1", 0))
            meter = ByteMeter(*unused.getsockname())
            relay = await asyncio.start_server(meter.relay, "127.0.0.1", 0)
            async with relay:
                reader, writer = await asyncio.open_connection(*relay.sockets[0].getsockname()[:2])
                linger = struct.pack("ii", 1, 0)
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                assert await reader.read() == b""
                writer.close()
                while meter.open:
                    await asyncio.sleep(0)
        return meter.counts

    assert asyncio.run(talk()).up == 0


@pytest.mark.long
@pytest.mark.e2e
def test_a_case_is_measured_over_the_wire_and_simulated():
    """Real processes send a quarter of the bytes, and end with the simulation's bits."""
    cell = next(c for c in compression.study(rounds=1).cells if c.row == "int8-both")
    run = compression.measure(cell, 0)
    size = 4 * (64 * 200 + 200 * 200 + 200 * 10 + 410)
    assert 0.25 * size < run.values["up"] < 0.35 * size
    assert size < run.values["down"] < 1.1 * size  # the first model is sent whole
    assert 0 < run.values["accuracy"] <= 1


@pytest.mark.long
def test_shares_and_losses_are_against_none(tmp_path):
    study = compression.study()
    assert [(r["case"], r["share_up"], r["loss"]) for r in study.as_json(RESULTS)] == [
        ("none", 1.0, 0.0),
        ("int8", 0.255, 0.01),
        ("top-1%", 0.025, 0.1),
    ]
    runner.report(study, RESULTS, tmp_path)
    assert "| int8 | 255 | 25.5% | 1,000 | 100.0% |" in (tmp_path / "README.md").read_text()
    assert (tmp_path / "compression.png").read_bytes().startswith(b"\x89PNG")


def test_cases_are_chosen_by_name():
    """With `none` for comparison; all cases by default."""
    study = compression.study()
    chosen = runner.only(study, ["int*"]).cells
    assert [cell.row for cell in chosen] == ["none", "int8", "int4", "int8-both"]
    assert runner.only(study, []).cells == study.cells
    with pytest.raises(UsageError, match="'gzip' is not a case"):
        runner.only(study, ["gzip"])


def test_every_case_is_a_run():
    for cell in compression.study(rounds=2).cells:
        up, down = compression.CASES[cell.row]
        assert config.build(cell.settings).spec.compression == {"up": up, "down": down}


@pytest.mark.parametrize("data", ["digits", "mnist"])
def test_committed_results_support_the_claims(data):
    """int8 within 26 % of the bytes and 0.005, top-1 % with memory within 3 % and 0.02."""
    words = ["reproduce", "compression", "--committed", "--data", data, "--json"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    rows = {row["case"]: row for row in json.loads(result.stdout)}
    int8, top = rows["int8"], rows["top-1%"]
    assert (int8["data"], int8["share_up"] <= 0.26, int8["loss"] <= 0.005) == (data, True, True)
    assert (top["share_up"] <= 0.03, top["loss"] <= 0.02) == (True, True)
