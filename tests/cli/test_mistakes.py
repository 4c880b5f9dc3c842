"""Typical mistakes of deployers, experimenters and operators: what each prints, and its exit code.

One line of the table is one mistake: the command, what is said to be wrong, what to do, the code.
A real server runs beside the tests, and a real client is enrolled.
"""

import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedloom.cli.main import main
from fedloom.protocol.trust.tokens import make_token
from support.door import write_model
from support.patience import PATIENCE_S
from support.ports import steady_port

RUN = "rounds = 3\n[cohort]\ngoal = 1\n[train]\nepochs = 1\nlearning_rate = 0.1\n"
CLIENT = """
from fedloom.client import Client
import numpy as np

class Line(Client):
    def __init__(self, path="x"):
        self.path = path

    def train(self, params, task):
        raise ValueError("no rows in ward.csv")

    def initial(self):
        return {"w": np.zeros(2)}

class Alone:
    def train(self, params, task): ...

def reader(path):
    return Line(path)

class Listed(Line):
    def initial(self):
        return [1, 2]

class Words(Line):
    def initial(self):
        return {"w": np.array(["a", "b"])}

class Later(Line):
    async def train(self, params, task):
        return params, 1, {}

class Empty(Line):
    def initial(self):
        return {}

client, number = Line(), 3
"""
EXPERIMENT = """
rounds = 1
[data]
source = "digits"
clients = 10
[model]
name = "mlp"
hidden = [8]
[cohort]
goal = 2
[train]
epochs = 1
learning_rate = 0.1
"""
CSV = "age,outcome\n30,home\n\n40,ward\nold,ward\n"
FROM_CSV = """
from fedloom.client.data import from_csv
from_csv("ward.csv", label="outcome", classes=["home", "ward"])
"""
SWEEP = 'experiment = "experiment.toml"\nmetric = "{metric}"\n[parameters]\n{parameters}\n'
FILES = {
    "run.toml": RUN,
    "client.py": CLIENT,
    "experiment.toml": EXPERIMENT,
    "plain.txt": "hello, this is no model and no table",
    "ward.csv": CSV,
    "from_csv.py": FROM_CSV,
    "syntax.py": "def train(self, params)\n    return 1\n",
    "missing.py": "import pandas_of_no_one\n",
    "extra.py": "import sys\nsys.modules['sklearn'] = None\nimport sklearn.svm\n",
    "raises.py": "rows = {}\nclient = rows['ward']\n",
    "no_file.py": "client = open('/data/of/no/ward.csv')\n",
    "ends.py": "import sys\nsys.exit('usage: ends.py WARD')\n",
    "quoted.toml": RUN.replace("3", '"3"', 1),
    "typo.toml": RUN.replace("epochs", "epoch"),
    "table.toml": RUN.replace("[cohort]", "[cohrot]"),
    "broken.toml": RUN.replace("]", "", 1),
    "nan.toml": RUN.replace("0.1", "nan"),
    "no_goal.toml": RUN.replace("goal = 1", ""),
    "both.toml": RUN + "steps = 2\n",
    "strategy.toml": RUN + '[strategy]\nname = "fedavgg"\n',
    "weighting.toml": 'weighting = "examplse"\n' + RUN,
    "sweep_key.toml": SWEEP.format(metric="accuracy", parameters='"train.rate" = [1]'),
    "sweep_file.toml": SWEEP.format(metric="accuracy", parameters="rounds = [1]").replace(
        "ment.t", ".t"
    ),
    "idx/train-images-idx3-ubyte": "no images",
}


@dataclass(frozen=True)
class Mistake:
    """One line of the table.

    Attributes:
        command: after `fedloom`; names in braces are `places`.
        wrong: regular expression: what is wrong.
        remedy: regular expression: what to do.
        code: exit code.
        process: run it in a process of its own.
    """

    command: str
    wrong: str
    remedy: str
    code: int = 2
    process: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def M(*args, **settings):  # noqa: N802 - a short name for a long table
    mistake = Mistake(*args, **settings)
    marks = [pytest.mark.long] if mistake.process else []
    return pytest.param(mistake, id=mistake.command.format_map(_Names()), marks=marks)


class _Names(dict):
    def __missing__(self, name):
        return name.upper()


ENROLL = "client enroll --dir new --server"
SUBMIT = "run submit --model init.safetensors"
SIMULATE = "simulate experiment.toml --quiet --set"

DEPLOYERS = [
    # where a server lives
    M("server init --dir {state}", "There is a server in .* already", "fedloom server run"),
    M("server init --dir plain.txt", "Expected a folder at plain.txt, got a file", "another path"),
    M("server init --dir /proc/none", "/proc/none cannot be used: No such file", "Correct it"),
    M("server init --dir new --fleet localhost", "Expected fleet as host:port", "such as 0.0.0.0"),
    M("server init --dir new --fleets x:1", "No such option '?--fleets", "id you mean.*--fleet"),
    M("server run --dir none", "There is no server.toml in none", "run `fedloom server init`"),
    M("server run", "Another server is running on", "stop it first, or choose another --dir", 5,
      process=True),
    M("server run --dir {second}", r"cannot listen on 127.0.0.1:\d+", "another program", 5,
      process=True),
    M("server run --dir {misspelt}", "Unknown setting 'fleett'", "Did you mean 'fleet'"),
    M("server run --dir {mistyped}", "Expected names as a list of texts, got 3", "got 3 .a number"),
    M("run list --dir none", "There is no server in none", "Name its state directory by --dir"),
    M(f"{SUBMIT} run.toml --dir none", "^error: There is no server in none",
      "of one on another machine by --url, or create one with `fedloom server init --dir none`"),
    M("run describe run.toml --dir none", "^error: There is no server in none", "by --url"),
    M("new both --numpy --torch", "Give one kind: --numpy or --torch", "not both"),
    M("run list --dir {second}", "The server in .* is not running", "fedloom server run --dir", 5),
    # the address of the enrolment port
    M(f"{ENROLL} {{fleet}} --token @{{token}}", "is the port for enrolled clients",
      "Enrol at the server's enrolment port, by default 7444"),
    M(f"{ENROLL} {{console}} --token @{{token}}", "answers, but not with TLS 1.3", "check the port",
      5),
    M(f"{ENROLL} https://{{enrolment}} --token @{{token}}", "Expected --server as host:port",
      r"such as 127.0.0.1:\d+, got"),
    M(f"{ENROLL} localhost --token @{{token}}", "Expected --server as host:port",
      "such as fl.example.org:7444"),
    M(f"{ENROLL} localhost:99999 --token @{{token}}", "got 99999", "a port from 1 to 65535"),
    M(f"{ENROLL} localhost:{{free}} --token @{{token}}", "Cannot reach .*refused",
      "check that the server runs, the address and the firewall", 5),
    M(f"{ENROLL} no.such.invalid:7444 --token @{{token}}", "Cannot reach no.such.invalid",
      "check that the server runs, the address", 5),
    M(f"{ENROLL} 127.0.0.2:{{port}} --token @{{token}}", "certificate is for localhost, 127.0.0.1",
      "connect by one of these", 3),
    # the token
    M(f"{ENROLL} {{enrolment}} --token {{token}}", "got the name of a file", "--token @.* reads"),
    M(f"{ENROLL} {{enrolment}} --token @none.token", "Cannot read the token in none.token",
      "No such file"),
    M(f"{ENROLL} {{enrolment}} --token @{{cut}}", "it has 3 part", "copy it whole", 3),
    M(f"{ENROLL} {{enrolment}} --token @{{wrong}}", "Expected a token of this server",
      "ask for a new one", 3),
    M(f"{ENROLL} {{enrolment}} --token @{{used}}", "was used before", "ask for a new one", 3),
    M(f"{ENROLL} {{enrolment}} --token @{{expired}}", "has expired", "ask for a new one", 3),
    M(f"{ENROLL} {{enrolment}} --token @{{foreign}}", "does not present the root certificate",
      "the token is from this server", 3),
    M("client enroll --dir {device} --server {enrolment} --token @{token}", "exists already",
      "Move it away to enrol again"),
    M("client enroll --dir /proc/x --server {enrolment} --token @{token}", "Cannot write to /proc",
      "the token is still valid", 5),
    # a device's settings
    M("client run client.py:client --config none.toml", "No settings file none.toml",
      "`fedloom client enroll` writes one"),
    M("client run client.py:client --config idx", "No settings file idx/client.toml",
      "`fedloom client enroll` writes one"),
    M("client run client.py:client --config {state}/server.toml", "Unknown setting 'federation'",
      "Known: attendance"),
    M("client run --config {device}/client.toml", "Expected either FILE.py:NAME", "--flower"),
    M("client config --config {device}/client.toml", "FEDLOOM_KEEP_WARM_S", "number",
      environment={"FEDLOOM_KEEP_WARM_S": "long"}),
    M("client model --config {device}/client.toml", "No model is promoted", "model promote"),
]  # fmt: skip

EXPERIMENTERS = [
    # their own code
    M("client test client.py", "got 'client.py'", "such as client.py:client"),
    M("client test clinet.py:client", "There is no file clinet.py", "Did you mean client.py"),
    M("client test client.py:clinet", "client.py has no 'clinet'", "Did you mean 'client'"),
    M("client test nowhere.of.mine:client", "There is no module 'nowhere.of.mine'", "install the"),
    M("client test client.py:number", "client.py:number is a int", "Name a fedloom.client.Client"),
    M("client test client.py:Alone", "is no fedloom.client.Client", r"class Alone\(Client\)"),
    M("client test client.py:reader", "missing a required argument: 'path'", "gives the arguments"),
    M("client test client.py:Listed", "a dict of arrays by name, got list", "from `initial`"),
    M("client test client.py:Words", "Expected a dtype of F64, .* for 'w', got <U1", "F32"),
    M("client test client.py:Later", "got coroutine", "Write `def train` instead of `async", 1),
    M("client test client.py:Empty", "Expected an initial model with tensors", "Return some"),
    M("client test syntax.py:client", r"line 1, `def train\(self, params\)`: SyntaxError",
      "Correct the code"),
    M("client test missing.py:client", "line 1, `import pandas_of_no_one`: ModuleNotFound",
      "pip install pandas_of_no_one"),
    M("client test extra.py:client", "line 3, `import sklearn.svm`: ModuleNotFoundError",
      r"pip install 'fedloom\[sklearn\]'"),
    M("client test raises.py:client", r"line 2, `client = rows\['ward'\]`: KeyError: 'ward'",
      "Correct the code"),
    M("client test no_file.py:client", "no_file.py, line 1, .*FileNotFoundError", "Check the path"),
    M("client test ends.py:client", "SystemExit: usage: ends.py WARD", "under `if __name__"),
    M("client test from_csv.py:client", "from_csv.py, line 3, .*'old' in line 5", "Remove it from"),
    M("client test client.py:client", r"got ValueError: no rows in ward.csv \(client.py, line 10, ",
      "1 fault to fix", 1),
    M("client run syntax.py:client --config {device}/client.toml", "syntax.py, line 1, `def train",
      "Correct the code", process=True),
    M("client run extra.py:client --config {device}/client.toml", "line 3, `import sklearn.svm`",
      r"pip install 'fedloom\[sklearn\]'", process=True),
    M("client doctor --code missing.py:client --config {device}/client.toml", "missing.py, line 1",
      "pip install", 1),
    M("model init client.py:client --out none/new.st", "There is no folder none", "create it"),
    M("model init client.py:Words --out new.st", "for 'w', got <U1", "Expected a dtype of"),
    M("model init missing.py:client --out new.safetensors", "missing.py, line 1", "pip install"),
    # a run's settings
    M(f"{SUBMIT} quoted.toml", 'Expected rounds as a whole number, got "3"', "without quotes: 3"),
    M(f"{SUBMIT} typo.toml", "Unknown setting 'train.epoch'", "Did you mean 'epochs'"),
    M(f"{SUBMIT} table.toml", "Unknown setting 'cohrot'", "Did you mean 'cohort'"),
    M(f"{SUBMIT} broken.toml", "as TOML, got: .*at line 2", "Correct that line"),
    M(f"{SUBMIT} nan.toml", "finite number for train.learning_rate, got nan", "Expected"),
    M(f"{SUBMIT} no_goal.toml", "Missing setting cohort.goal", "set it to a whole number"),
    M(f"{SUBMIT} both.toml", "got epochs=1, steps=2", "Expected either epochs or steps"),
    M(f"{SUBMIT} strategy.toml", "Expected a strategy, got 'fedavgg'", "Did you mean 'fedavg'"),
    M(f"{SUBMIT} weighting.toml", 'got "examplse"', "Did you mean 'examples'"),
    M(f"{SUBMIT} none.toml", "in none.toml, got no such file", "fedloom run template"),
    M("run submit run.toml", "Missing option --model", "fedloom model init FILE.py:NAME"),
    M("run submit run.toml --model none.st", "neither a file nor a digest", "fedloom model init"),
    M("run submit run.toml --model deadbeef", "There is no model 'deadbeef'", "fedloom model list"),
    M("run submit run.toml --model plain.txt", "plain.txt: Expected a safetensors file",
      "fedloom.client.save_file write one", 4),
    # simulations and sweeps
    M("simulate none.toml", "in none.toml, got no such file", "Expected an experiment"),
    M("simulate idx", "got the folder idx", "Expected an experiment in a file"),
    M("simulate run.toml", "needs the tables .data. and .model.", "fedloom simulate --help"),
    M(f"{SIMULATE} data.source=digit", "Expected a source of data, got 'digit'", "mean 'digits'"),
    M(f"{SIMULATE} data.source=mnist --set data.folder=none", "'mnist' is not in",
      "Set folder to the folder of the files, or download = true"),
    M(f"{SIMULATE} data.source=idx --set data.folder=idx", "idx", "Expected|expected"),
    M(f"{SIMULATE} data.clients=100000", "got 100000", "Set fewer clients, or use more data",
      process=True),
    M(f"{SIMULATE} data.partition.name=dirichle", "got 'dirichle'", "Did you mean 'dirichlet'"),
    M(f"{SIMULATE} data.partition.name=dirichlet --set data.partition.alpha=-1", "got -1",
      "Expected a finite alpha > 0"),
    M(f"{SIMULATE} cohort.goal=500", "larger than the population of 10 clients",
      "Lower cohort.goal or raise data.clients"),
    M(f"{SIMULATE} model.name=missing.py:net", "missing.py, line 1", "pip install"),
    M(f"{SIMULATE} rounds", "got 'rounds'", "Expected --set NAME=VALUE"),
    M("sweep none.toml", "in none.toml, got no such file", "Expected a sweep"),
    M("sweep experiment.toml", "Unknown setting", "Known: algorithm, derived, experiment"),
    M("sweep sweep_file.toml", "cannot be read", "No such file"),
    M("sweep sweep_key.toml", "Unknown setting 'train.rate'", "Known: .*learning_rate",
      process=True),
]  # fmt: skip

OPERATORS = [
    M("clients list", "No such command 'clients'", "Did you mean `fedloom client list`"),
    M("run lst", "No such command 'lst'", "Did you mean `fedloom run list`"),
    M("run watch", "No such command 'watch'", "Did you mean `fedloom run status`"),
    M("token create --ttl 0", "expected a duration above 0", "such as 15m"),
    M("token create --client 'a b'", "got 'a b'", "Expected a client name of 1 to 64 characters"),
    M("client show none", "There is no client 'none'", "fedloom client list"),
    M("client revoke dev", "Without a terminal this needs --yes", "Consequence: dev's cert"),
    M("client label dev ward", "got 'ward'", "Expected LABEL=VALUE to set a label"),
    M("run status none", "There is no run 'none'", "fedloom run list"),
    M("run resume {stopped} --yes", "which is stopped", "Submit it again"),
    M("run pause {stopped} --yes", "which is stopped", "Submit it again"),
    M("run extend {open} 60", "Expected fewer arguments, got 60 too many|Missing option", "--"),
    M("run status r", "2 runs begin with 'r'", "expected one: r"),
    M("round show 99 --run {open}", "There is no round 99|No such option", "fedloom round|--"),
    M("model export none --out x.st", "got 'none'", "a model's digest or at least its first 4"),
    M("model rollback {open} 9 --yes", "got 9", "Expected a committed training round"),
    M("model upload plain.txt", "Expected a safetensors file, got other bytes", "save_file", 4),
    M("user add ann", "Without a terminal", "--password-file FILE"),
    M("user add ann --scope viewr", "'viewr' is not one of", "'viewer', 'operator', 'admin'"),
    M("user add ann --password-file run.toml", "Expected mode 600 of run.toml", "chmod 600"),
    M("user remove bob --yes", "There is no user 'bob'", "fedloom user list"),
    M("api-token revoke none --yes", "no API token with the id 'none'", "fedloom api-token list"),
    M("run list --url http://{console}", "--url needs an API token", "fedloom api-token create"),
    M("run list --url {console} --api-token @{api}", "got '127", "--url as https://HOST:PORT"),
    M("run list --url http://{console} --api-token guess", "unknown, revoked or expired",
      "Ask an administrator for a new one", 3),
    M("run list --url https://{console} --api-token @{api}", "does not speak TLS",
      "A console on loopback speaks http", 5),
    M("run list --url http://{fleet} --api-token @{api}", "did not answer", "the console's address",
      5),
    M("run list --url http://127.0.0.1:{free} --api-token @{api}", "Connection refused",
      "Check that it runs", 5),
    M("run list --url http://fl.example.org --api-token @{api}", "http would expose the token",
      "Expected https for another machine"),
    M("run stop {open} --yes --url http://{console} --api-token @{api}", "viewer", "operator", 3),
]  # fmt: skip


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Files, a server, an enrolled client, tokens and runs: what commands of the table name."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("mistakes")
        patch.chdir(folder)
        patch.delenv("FEDLOOM_TOKEN", raising=False)
        patch.setenv("FEDLOOM_DIR", "state")
        patch.setattr(sys, "path", list(sys.path))
        for name, text in FILES.items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text(text)
        write_model(Path("init.safetensors"))
        yield from _served()
    for name in FILES:
        sys.modules.pop(Path(name).stem, None)


def _served():
    fleet, enrolment, console, free = (steady_port() for _ in range(4))
    made = {
        "state": "state", "second": "second", "misspelt": "misspelt", "mistyped": "mistyped",
        "device": "device", "fleet": f"127.0.0.1:{fleet}", "enrolment": f"127.0.0.1:{enrolment}",
        "port": enrolment, "console": f"127.0.0.1:{console}", "free": free,
    }  # fmt: skip
    for place in ("state", "second", "misspelt", "mistyped"):
        ports = ("--fleet", made["fleet"], "--enrolment", f"0.0.0.0:{enrolment}")
        _ok("server", "init", "--dir", place, *ports)
    _edit("state", 'console = "auto"', f'console = "{made["console"]}"')
    _edit("second", 'console = "auto"', 'console = ""')
    _edit("misspelt", "fleet =", "fleett =")
    settings = Path("mistyped/server.toml")
    settings.write_text(re.sub(r"\nnames = .*\n", "\nnames = 3\n", settings.read_text()))
    command = (sys.executable, "-m", "fedloom.cli.main", "server", "run", "--ready", "ready")
    with Path("server.log").open("wb") as log, subprocess.Popen(command, stderr=log) as server:
        try:
            _until(lambda: Path("ready").exists() or server.poll() is not None)
            assert server.poll() is None, Path("server.log").read_text()
            yield made | _tokens(made) | _runs()
        finally:
            server.terminate()


def _edit(place, old, new):
    path = Path(place) / "server.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def _ok(*words):
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    return done.stdout


def _until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _tokens(made):
    """Tokens that are good, cut off, mistyped, used, expired and of another server."""
    names = ("good", "dev", "old")
    for name in names:
        ttl = ("--ttl", "0.001s") if name == "old" else ()
        _ok("token", "create", "--client", name, "--out", "tokens", *ttl)
    texts = {name: Path(f"tokens/{name}.token").read_text().strip() for name in names}
    _ok("client", "enroll", "--server", made["enrolment"], "--dir", "device",
        "--token", "@tokens/dev.token")  # fmt: skip
    head, secret, pin = texts["good"].rsplit(".", 2)
    flipped = ("A" if secret[0] != "A" else "B") + secret[1:]
    api = _ok("api-token", "create", "reader", "--scope", "viewer", "--json")
    written = {
        "cut": texts["good"].rpartition(".")[0],
        "wrong": f"{head}.{flipped}.{pin}",
        "foreign": make_token(b"\1" * 32).text(),
        "api": re.search(r'"token": "([^"]+)"', api)[1],
    }
    for name, text in written.items():
        Path(name).touch(mode=0o600)
        Path(name).write_text(text)
    files = {name: name for name in written}
    return files | {"token": "tokens/good.token", "used": "tokens/dev.token",
                    "expired": "tokens/old.token"}  # fmt: skip


def _runs():
    """A run that waits for clients, and one that was stopped."""
    for name in ("r-open", "r-ended"):
        Path(f"{name}.toml").write_text(f'name = "{name}"\n{RUN}')
        _ok("run", "submit", f"{name}.toml", "--model", "init.safetensors")
    _ok("run", "stop", "r-ended", "--yes")
    return {"open": "r-open", "stopped": "r-ended"}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    """Undo what `extra.py` does to scikit-learn, and `server run` to the umask."""
    if "sklearn" in sys.modules:
        monkeypatch.setitem(sys.modules, "sklearn", sys.modules["sklearn"])
    umask = os.umask(0)
    os.umask(umask)
    yield
    os.umask(umask)
    if sys.modules.get("sklearn", ...) is None:
        del sys.modules["sklearn"]


def _done(mistake, words):
    if mistake.process:
        command = [sys.executable, "-m", "fedloom.cli.main", *words]
        environment = {**os.environ, **mistake.environment}
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        return done.returncode, done.stdout + done.stderr
    done = CliRunner().invoke(main, words, env=mistake.environment)
    return done.exit_code, done.output


@pytest.mark.parametrize("mistake", [*DEPLOYERS, *EXPERIMENTERS, *OPERATORS])
def test_a_mistake_is_explained(places, mistake):
    """It says what is wrong and what to do, by the code of its kind, and shows no traceback."""
    code, text = _done(mistake, shlex.split(mistake.command.format_map(places)))
    flat = " ".join(text.split())
    assert re.search(mistake.wrong, flat), text
    assert re.search(mistake.remedy, flat), text
    assert code == mistake.code, text
    assert "Traceback" not in text
    assert "unexpected" not in text


def test_the_table_is_long_enough():
    """Sixty mistakes, of all three readers."""
    assert len({*map(id, [*DEPLOYERS, *EXPERIMENTERS, *OPERATORS])}) >= 60
    assert min(map(len, (DEPLOYERS, EXPERIMENTERS, OPERATORS))) >= 20
