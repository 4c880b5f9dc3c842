"""What the command line costs before it does anything: little, and nothing of what it may need."""

import json
import subprocess
import sys

import pytest

HEAVY = ("fastapi", "grpc", "numpy", "rich", "sqlalchemy", "torch", "uvicorn")
YARDSTICK = "asyncio, http.client, unittest.mock"
"""Parts of the standard library: what importing them costs says how fast this machine is."""
BUDGET = 3.0


def _python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _loaded(code):
    names = _python(
        f"{code}\nimport json, sys\n"
        "print(json.dumps(sorted({m.split('.')[0] for m in sys.modules}\n"
        "  | {'.'.join(m.split('.')[:2]) for m in sys.modules if m.startswith('fedloom.')})))"
    )
    return set(names)


def test_the_entry_point_loads_nothing_heavy():
    """Help, completion and a wrong command are instant on any device."""
    run = "from fedloom.cli.main import main\nmain(['--help'], standalone_mode=False)"
    assert not _loaded(run) & {*HEAVY, "fedloom.server", "fedloom.client", "fedloom.simulation"}


@pytest.mark.parametrize("group", ["token", "client", "run", "model", "round", "top"])
def test_operators_and_devices_commands_load_nothing_of_the_server(group):
    """They run where the server's extra is not installed, and never pull torch in."""
    run = f"from fedloom.cli.main import main\nmain(['{group}', '--help'], standalone_mode=False)"
    unwanted = {"fastapi", "sqlalchemy", "torch", "uvicorn", "fedloom.server", "fedloom.simulation"}
    assert not _loaded(run) & unwanted


def test_a_devices_run_loads_nothing_of_the_server():
    """What `fedloom client run` imports fits the small install."""
    code = "import fedloom.cli.main, fedloom.cli.common.load_code, fedloom.cli.device.client"
    assert not _loaded(code) & {"fastapi", "sqlalchemy", "torch", "uvicorn", "fedloom.server"}


def test_the_servers_commands_leave_grpc_to_the_server():
    """It tunes the allocator, which has to come first."""
    run = "main(['server', 'run', '--help'], standalone_mode=False)"
    code = f"from fedloom.cli.main import main\n{run}"
    assert not _loaded(code) & {"grpc", "sqlalchemy", "fastapi"}


def test_the_server_tunes_the_allocator_before_grpc_loads():
    """Afterwards its arenas would be made already."""
    code = (
        "import ctypes, json, sys\nloaded = []\n"
        "ctypes.CDLL = lambda name: loaded.append('grpc' in sys.modules) or object()\n"
        "import fedloom.server.app\nprint(json.dumps(loaded))"
    )
    assert _python(code)[:1] in ([False], [])  # it has no such allocator elsewhere


@pytest.mark.parametrize("module", ["fedloom.cli.main", "fedloom.cli.device.client"])
def test_importing_stays_in_its_budget(module):
    """Processor time, the best of three, by that of the yardstick: neither busy nor slow counts."""

    def cost_s(names):
        code = f"import time; start = time.process_time()\nimport {names}\n"
        return min(_python(f"{code}print(time.process_time() - start)") for _ in range(3))

    assert cost_s(module) < BUDGET * cost_s(YARDSTICK)


@pytest.mark.parametrize(
    ("words", "missing", "extra"),
    [
        (["server", "run", "--dir"], "fastapi", "server"),
        (["server", "run", "--dir"], "sqlalchemy", "server"),
        (["demo", "--out"], "torch", "sim"),
        (["demo", "--out"], "matplotlib", "sim"),
    ],
)
def test_a_missing_extra_is_answered_with_its_name(words, missing, extra, tmp_path):
    """Not with a traceback."""
    code = (
        f"import sys; sys.modules['{missing}'] = None\n"
        "from fedloom.cli.main import main\n"
        f"main({[*words, str(tmp_path)]!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"pip install 'fedloom[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_operator_without_the_tables_extra_is_told_of_json():
    """A device's install has no table printer; what an operator can do about it is said."""
    code = (
        "import sys; sys.modules['rich'] = None\n"
        "from fedloom.cli.common import output\n"
        "from fedloom.cli.main import main\n"
        "import click\n"
        "show = lambda: output.print_table(['a'], [['b']], '')\n"
        "main.add_command(click.Command('t', callback=show))\n"
        "main(['t'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'fedloom[server]'" in done.stderr
    assert "--json" in done.stderr
