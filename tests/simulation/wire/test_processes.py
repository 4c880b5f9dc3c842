"""Commands and processes of a federation on this machine end with the errors of their own."""

import pytest
from rich.console import Console

from fedloom.protocol.errors import UnavailableError, UsageError
from fedloom.simulation.wire.processes import LocalProcesses
from support.patience import PATIENCE_S

pytestmark = pytest.mark.e2e


@pytest.fixture
def processes(tmp_path):
    with LocalProcesses(tmp_path, Console(quiet=True)) as made:
        yield made


def test_a_commands_error_is_passed_on(processes, tmp_path):
    """Its message and its kind, not its JSON document."""
    code = tmp_path / "code.py"
    code.write_text("def x(\n")
    out = str(tmp_path / "new.safetensors")
    with pytest.raises(UsageError, match=r"^\S+code.py, line 1, `def x\(`: SyntaxError"):
        processes.command("model", "init", f"{code}:client", "--out", out)


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        (("client", "run", "none.py:client"), UsageError, "ward ended with 2: .*client"),
        (("--version",), UnavailableError, r"ward ended with 0: .*\(see .*ward.log\)"),
    ],
)
def test_a_process_that_ends_is_named_with_its_last_line(
    processes, tmp_path, arguments, error, told
):
    """As an error of its kind; any other end is unavailability."""
    processes.keep("ward", "fedloom.cli.main", *arguments)
    with pytest.raises(error, match=told) as raised:
        processes.wait_for(tmp_path / "none", PATIENCE_S)
    assert "error: " not in str(raised.value)
