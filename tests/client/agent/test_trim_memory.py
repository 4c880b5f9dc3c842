"""Memory that an idle agent returns to the system."""

import asyncio
import subprocess
import sys

import numpy as np
import pytest

from fedloom.client.agent import agent as agent_module
from fedloom.client.agent import trim_memory
from support.agents import Adder, played, submit, until

SMAPS = """\
1000-3000 r-xp 00000000 fe:00 1 /lib/clean.so
Rss: 8 kB
Private_Dirty: 0 kB
Anonymous: 0 kB
VmFlags: rd ex
3000-4000 r-xp 00000000 fe:00 1 /lib/patched.so
Private_Dirty: 4 kB
4000-5000 rw-p 00000000 fe:00 1 /lib/data.so
Private_Dirty: 0 kB
5000-6000 r--s 00000000 fe:00 1 /tmp/shared
6000-7000 r--p 00000000 00:00 0
7000-8000 r--p 00000000 00:00 0 [vvar]
8000-9000 r--p 00000000 fe:00 1 /lib/a name.so (deleted)
Private_Dirty: 0 kB
Anonymous: 4 kB
a000-b000 r--p 00000000 fe:00 1 /lib/rodata.so
Private_Dirty: 0 kB
"""


def test_only_unmodified_read_only_file_pages_are_released():
    found = list(trim_memory.clean_mappings(SMAPS.splitlines()))
    assert found == [(0x1000, 0x3000), (0xA000, 0xB000)]


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/smaps is Linux's")
def test_trim_all_releases_half_of_the_library_pages():
    """And the process still works."""
    code = """
import sys
import fedloom.client
from fedloom.client.agent import trim_memory
def resident():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile"))
before = resident()
trim_memory.trim_all()
after = resident()
import numpy, json
numpy.linalg.inv(numpy.eye(50)) @ numpy.eye(50)
sys.exit(0 if after < before / 2 else f"{before} {after}")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.long
def test_an_agent_trims_once_each_time_that_it_becomes_idle(tmp_path, monkeypatch):
    """After its start and after each task; not during a task, and not repeatedly."""
    trimmed = []
    monkeypatch.setattr(agent_module, "TRIM_AFTER_S", 0.001)
    monkeypatch.setattr(trim_memory, "trim_all", lambda: trimmed.append(1))

    async def scenario(federation, agents):
        await agents.start("a", Adder())
        await until(lambda: len(trimmed) == 1)
        for _ in range(50):  # many times TRIM_AFTER_S
            await asyncio.sleep(0.001)
        assert len(trimmed) == 1
        ones = {"w": np.ones(2, np.float32)}
        run = await submit(federation, ones, cohort={"goal": 1, "quorum": 1})
        await federation.ended(run)
        await until(lambda: len(trimmed) == 2)

    played(tmp_path, scenario)


@pytest.mark.long
def test_an_agent_between_rounds_that_follow_each_other_keeps_its_memory(monkeypatch):
    """Trimming takes as long as several small rounds."""
    trimmed = []
    monkeypatch.setattr(trim_memory, "trim_all", lambda: trimmed.append(1))

    async def scenario():
        idle, busy = asyncio.Event(), asyncio.Event()
        trimming = asyncio.ensure_future(trim_memory.trim_when_idle(idle, busy, 1.0))
        for _ in range(60):
            busy.clear()
            idle.set()
            await asyncio.sleep(0.04)
            idle.clear()
            busy.set()
            await asyncio.sleep(0.001)
        assert not trimmed
        busy.clear()
        idle.set()
        await until(lambda: trimmed)
        trimming.cancel()

    asyncio.run(scenario())
