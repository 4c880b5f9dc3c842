"""Imports and start-up time of the command line."""

import json
import subprocess
import sys

import pytest

HEAVY = ("fastapi", "grpc", "numpy", "rich", "sqlalchemy", "torch", "uvicorn")
YARDSTICK = "asyncio, http.client, unittest.mock"
"""Modules of the standard library whose import time measures this machine's speed."""
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


def test_entry_point_imports_no_heavy_module():
    """Help and completion are fast on any device."""
    run = "from fedloom.cli.main import main\nmain(['--help'], standalone_mode=False)"
    assert not _loaded(run) & {*HEAVY, "fedloom.server", "fedloom.client", "fedloom.simulation"}


@pytest.mark.long
@pytest.mark.parametrize("group", ["token", "client", "run", "model", "round", "top"])
def test_commands_do_not_import_the_server(group):
    """They work without the server's extra, and do not import torch."""
    run = f"from fedloom.cli.main import main\nmain(['{group}', '--help'], standalone_mode=False)"
    unwanted = {"fastapi", "sqlalchemy", "torch", "uvicorn", "fedloom.server", "fedloom.simulation"}
    assert not _loaded(run) & unwanted


@pytest.mark.long
def test_client_run_does_not_import_the_server():
    """`fedloom client run` works with the minimal install."""
    code = "import fedloom.cli.main, fedloom.cli.common.load_code, fedloom.cli.device.client"
    assert not _loaded(code) & {"fastapi", "sqlalchemy", "torch", "uvicorn", "fedloom.server"}


def test_server_commands_do_not_import_grpc():
    """The server must set the allocator's options before grpc is imported."""
    run = "main(['server', 'run', '--help'], standalone_mode=False)"
    code = f"from fedloom.cli.main import main\n{run}"
    assert not _loaded(code) & {"grpc", "sqlalchemy", "fastapi"}


@pytest.mark.long
def test_server_sets_the_allocator_before_importing_grpc():
    """Later the arenas would exist already."""
    code = (
        "import ctypes, json, sys\nloaded = []\n"
        "ctypes.CDLL = lambda name: loaded.append('grpc' in sys.modules) or object()\n"
        "import fedloom.server.app\nprint(json.dumps(loaded))"
    )
    assert _python(code)[:1] in ([False], [])  # empty on systems without glibc


@pytest.mark.long
@pytest.mark.parametrize("module", ["fedloom.cli.main", "fedloom.cli.device.client"])
def test_import_time_is_limited(module):
    """CPU time, best of three, relative to the yardstick; independent of load and speed."""

    def cost_s(names):
        code = f"import time; start = time.process_time()\nimport {names}\n"
        return min(_python(f"{code}print(time.process_time() - start)") for _ in range(3))

    assert cost_s(module) < BUDGET * cost_s(YARDSTICK)


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "missing", "extra"),
    [
        (["server", "run", "--dir"], "fastapi", "server"),
        (["server", "run", "--dir"], "sqlalchemy", "server"),
        (["demo", "--out"], "torch", "sim"),
        (["demo", "--out"], "matplotlib", "sim"),
    ],
)
def test_missing_extra_is_named(words, missing, extra, tmp_path):
    """The error is a sentence, not a traceback."""
    code = (
        f"import sys; sys.modules['{missing}'] = None\n"
        "from fedloom.cli.main import main\n"
        f"main({[*words, str(tmp_path)]!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"pip install 'fedloom[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_rich_suggests_json():
    """The minimal install has no table printer."""
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
