"""`fedloom new`, then `fedloom up`, as they are typed: every kind, in real processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedloom.client import load_file
from support.patience import PATIENCE_S
from support.ports import steady_port

pytestmark = [pytest.mark.long, pytest.mark.e2e]

FEDLOOM = f"{Path(sys.executable).parent}/fedloom"
TABLE = "age,sex,outcome\n" + "".join(
    f"{20 + n * 37 % 61},{'fm'[n % 2]},{('home', 'ward')[n * 37 % 61 > 30]}\n" for n in range(240)
)


def fedloom(*words, cwd, code=0):
    """What a command printed."""
    done = subprocess.run(
        [FEDLOOM, *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def alive(folder):
    """Processes whose command line names a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def eventually(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("kind", "module", "better"),
    [
        pytest.param(["--numpy"], "numpy", "accuracy", marks=pytest.mark.longest),
        pytest.param(["--sklearn"], "sklearn", "accuracy", marks=pytest.mark.longest),
        (["--torch"], "torch", "accuracy"),
        (["--numpy", "--csv", "visits.csv"], "numpy", "accuracy"),
        pytest.param(
            ["--numpy", "--csv", "visits.csv", "--label", "age"],
            "numpy",
            None,
            marks=pytest.mark.longest,
        ),
    ],
    ids=["numpy", "sklearn", "torch", "csv", "csv-number"],
)
def test_two_commands_from_an_empty_folder_to_a_trained_model(
    tmp_path, capsys, kind, module, better
):
    """The time is printed, not asserted: the goal is a minute."""
    pytest.importorskip(module)
    (tmp_path / "visits.csv").write_text(TABLE)
    begun = time.monotonic()
    fedloom("new", "mine", *kind, cwd=tmp_path)
    printed = fedloom("up", "mine", cwd=tmp_path)
    with capsys.disabled():
        print(f"\nnew and up {' '.join(kind)}: {time.monotonic() - begun:.1f} s")
    after = dict(re.findall(r"^(accuracy|loss)\s+(?:\S+)\s+(\S+)$", printed, re.MULTILINE))
    before = dict(re.findall(r"^(accuracy|loss)\s+(\S+)\s+(?:\S+)$", printed, re.MULTILINE))
    assert float(after["loss"]) < 0.8 * float(before["loss"])
    if better:
        assert float(after[better].rstrip("%")) > 85
    assert "login/link?code=" in printed
    assert "fedloom client run my_client.py:client --config device/client.toml" in printed
    assert load_file(tmp_path / "mine" / "model.safetensors")
    assert alive(tmp_path) == []


@pytest.mark.longest
def test_up_again_trains_anew_with_the_same_clients(tmp_path):
    """The same bits from the same files; a file more in data/ is a client more; --fresh forgets."""
    fedloom("new", "mine", "--numpy", cwd=tmp_path)
    folder = tmp_path / "mine"
    first = json.loads(fedloom("up", "--json", cwd=folder))
    model = load_file(folder / "model.safetensors")
    (folder / "data" / "east.csv").write_bytes((folder / "data" / "north.csv").read_bytes())
    (folder / "run.toml").write_text(
        (folder / "run.toml").read_text().replace("goal = 3", "goal = 4")
    )
    second = json.loads(fedloom("up", "--json", cwd=folder))
    assert second["run"] != first["run"]
    assert sorted(p.name for p in (folder / ".fedloom/clients").iterdir()) == [
        "east", "north", "south", "west",
    ]  # fmt: skip
    (folder / "data" / "east.csv").unlink()
    said = fedloom("up", cwd=folder, code=2)
    assert "waits for 4 clients (cohort.goal)" in said
    (folder / "run.toml").write_text(
        (folder / "run.toml").read_text().replace("goal = 4", "goal = 3")
    )
    json.loads(fedloom("up", "--json", "--fresh", cwd=folder))
    again = load_file(folder / "model.safetensors")
    assert all(np.array_equal(again[name], model[name]) for name in model)
    assert not (folder / ".fedloom/clients/east").exists()


def test_an_interrupted_run_continues_and_changed_files_begin_anew(tmp_path):
    """Ctrl-C ends all processes; the same run goes on; another learning rate is another run."""
    fedloom("new", "mine", "--numpy", cwd=tmp_path)
    folder = tmp_path / "mine"
    long = (folder / "run.toml").read_text().replace("rounds = 10", "rounds = 3000")
    (folder / "run.toml").write_text(long)

    def interrupted(kill):
        with (tmp_path / "up.log").open("w") as log:
            process = subprocess.Popen(
                [FEDLOOM, "up", "--keep"], cwd=folder, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        ledger = folder / ".fedloom" / "run.json"
        before = ledger.read_text() if ledger.exists() else ""

        def began():
            text = (tmp_path / "up.log").read_text()
            assert process.poll() is None, text
            return "login/link" in text

        eventually(began, "the run is shown")
        time.sleep(2)  # some rounds
        assert "runs already" in fedloom("up", cwd=folder, code=2)
        kill(process)
        assert process.wait(PATIENCE_S) in (130, -signal.SIGKILL)
        eventually(lambda: alive(folder) == [], "all processes end")
        return before, json.loads(ledger.read_text())["run"], (tmp_path / "up.log").read_text()

    _, first, said = interrupted(lambda p: os.killpg(p.pid, signal.SIGINT))
    assert "Interrupted. `fedloom up` continues the run." in said
    _, second, said = interrupted(lambda p: p.kill())
    assert second == first
    assert f"Continuing {first}, which was interrupted." in said
    (folder / "run.toml").write_text(long.replace("rounds = 3000", "rounds = 2"))
    said = fedloom("up", cwd=folder)
    assert f"Stopped {first}, as the folder's files have changed since." in said
    assert json.loads((folder / ".fedloom/run.json").read_text())["run"] != first


@pytest.mark.longest
def test_a_folder_that_lacks_something_is_refused(tmp_path):
    """With what it lacks; broken code is named by its own error."""
    assert "got no my_client.py in" in fedloom("up", cwd=tmp_path, code=2)
    assert "got no my_client.py in" in fedloom("up", "nowhere", cwd=tmp_path, code=2)
    fedloom("new", "mine", "--numpy", cwd=tmp_path)
    data = tmp_path / "mine" / "data"
    (data / "north.txt").write_text("x")
    assert "got north.csv and north.txt" in fedloom("up", "mine", cwd=tmp_path, code=2)
    (data / "north.txt").rename(data / "a b.txt")
    assert "name their clients" in fedloom("up", "mine", cwd=tmp_path, code=2)
    (data / "a b.txt").unlink()
    lines = (data / "north.csv").read_text().splitlines()
    lines[4] = lines[4].replace(",", ",hot,", 1).rpartition(",")[0]
    (data / "north.csv").write_text("\n".join(lines))
    assert re.search(
        r"(?m)^error: .*north.csv, line 5, column", fedloom("up", "mine", cwd=tmp_path, code=2)
    )
    fedloom("new", "third", "--numpy", cwd=tmp_path)
    third = tmp_path / "third"
    south = (third / "data" / "south.csv").read_text()
    (third / "data" / "south.csv").write_text(south + "1,2\n")
    said = fedloom("up", "third", cwd=tmp_path, code=2)
    assert re.search(r"(?m)^error: south ended with 2: .*south.csv, line 242: expected 6", said)
    (third / "data" / "south.csv").write_text(south)
    run = (third / "run.toml").read_text()
    (third / "run.toml").write_text(run.replace("rounds = 10", 'rounds = "10"'))
    said = fedloom("up", "third", cwd=tmp_path, code=2)
    assert re.search(r"(?m)^error: .*Expected rounds as a whole number", said)
    assert alive(tmp_path) == []


@pytest.mark.longest
def test_two_at_once_make_one_server(tmp_path):
    """In a folder without state: one trains, the other is refused; --fresh takes the same lock."""
    fedloom("new", "mine", "--numpy", cwd=tmp_path)
    for more in ((), ("--fresh",)):
        both = [
            subprocess.Popen(
                [FEDLOOM, "up", "mine", *more], cwd=tmp_path, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True,
            )
            for _ in range(2)
        ]  # fmt: skip
        said = [process.communicate(timeout=600)[0] for process in both]
        assert sorted(process.returncode for process in both) == [0, 2], said
        assert "runs already" in said[[process.returncode for process in both].index(2)]


class Terminals:
    """Types the lines of a README: on other ports, and without pip."""

    def __init__(self):
        self.fleet, self.enrolment = steady_port(), steady_port()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "SERVER": "127.0.0.1"}
        self.running = []

    def type_in(self, lines, cwd):
        """Type lines in a folder; those that run until stopped go on."""
        for line in lines:
            if line.startswith(("pip ", "export ")):
                continue
            typed = line.replace(":7444", f":{self.enrolment}")
            if typed.startswith("fedloom server init"):
                typed += f" --fleet 127.0.0.1:{self.fleet} --enrolment 127.0.0.1:{self.enrolment}"
            if typed.endswith("&") or " client run " in typed:
                with (cwd / f"terminal-{len(self.running)}.log").open("w") as log:
                    self.running.append(
                        subprocess.Popen(
                            typed.rstrip("& ").split(),
                            cwd=cwd,
                            env=self.environment,
                            stdout=log,
                            stderr=log,
                        )
                    )
                continue
            self._until_done(typed, cwd)

    def _until_done(self, line, cwd):
        """Again while the server that was started before it does not listen yet."""
        deadline = time.monotonic() + PATIENCE_S
        while (done := self.do(line, cwd)).returncode:
            waits = done.returncode == 5 and time.monotonic() < deadline
            assert waits, f"{line}\n{done.stdout}{done.stderr}"
            time.sleep(0.2)

    def do(self, line, cwd):
        """Type one line."""
        return subprocess.run(
            line,
            shell=True,
            cwd=cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def stop(self):
        """End what goes on."""
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait(PATIENCE_S)


def test_the_readmes_commands_deploy_the_folder(tmp_path):
    """On another server and in fresh folders, without the data of the other devices."""
    fedloom("new", "mine", "--numpy", cwd=tmp_path)
    folder = tmp_path / "mine"
    blocks = re.findall(r"```sh\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    on_server, on_device, as_operator = (block.splitlines() for block in blocks)
    terminals = Terminals()
    try:
        terminals.type_in(on_server, folder)
        for site in ("north", "south", "west"):
            device = tmp_path / f"device-{site}"
            device.mkdir()
            needed = ("my_client.py", "columns.toml", f"tokens/{site}.token", f"data/{site}.csv")
            for name in needed:
                (device / Path(name).name).write_bytes((folder / name).read_bytes())
            terminals.environment["DATA"] = f"{site}.csv"
            terminals.type_in([line.replace("north", site) for line in on_device], device)
        del terminals.environment["DATA"]
        terminals.type_in(as_operator, folder)
        status = json.loads(terminals.do("fedloom run status --json", folder).stdout)
        assert status["state"] == "finished"
        assert status["rounds"][-1]["evaluation"]["values"]["accuracy"] > 0.85
    finally:
        terminals.stop()
