"""Released files: wheel, source archive and offline bundle, built and installed."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from fedloom.protocol.version import __version__

pytestmark = pytest.mark.skipif(
    not os.environ.get("FEDLOOM_TEST_PACKAGE"), reason="takes minutes and a network: make package"
)

ROOT = Path(__file__).parents[2]
ROOTS = ("server", "client_sdk", "strategies", "simulations")
SITE = "fedloom/server/web/documentation.zip"
ARCHIVE = ROOT / "server" / SITE
BUDGET_BYTES = 128e6
CLEAN = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME"}}
OFFLINE = {k: v for k, v in CLEAN.items() if not k.startswith("PIP_")} | {
    "PIP_CONFIG_FILE": os.devnull,
    "HTTPS_PROXY": "http://127.0.0.1:9",  # no process listens there
}


def run(*command, **more):
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True, text=True, check=False, **{"env": CLEAN, "cwd": ROOT} | more,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT)
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """The bundles of both platforms, for the running Python."""
    folder = tmp_path_factory.mktemp("bundles")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    script = ROOT / "scripts" / "offline_bundle.sh"
    run(script, "--python", version, "--out", folder, env=CLEAN | {"PYTHON": sys.executable})
    return folder


@pytest.fixture
def unpacked(bundles, tmp_path):
    """The bundle of this machine."""
    run("tar", "-xf", bundles / f"fedloom-{__version__}-{platform.machine()}.tar", "-C", tmp_path)
    return tmp_path / f"fedloom-{__version__}-{platform.machine()}"


def test_two_builds_are_the_same_bytes(wheel, tmp_path):
    """Of the same files in another folder, with other times and permissions."""
    copy, again = tmp_path / "copy", tmp_path / "again"
    run("git", "clone", "-q", ROOT, copy)
    built = [ARCHIVE.relative_to(ROOT).as_posix()] * ARCHIVE.exists()
    for name in run("git", "ls-files").splitlines() + built:
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
            (copy / name).chmod(0o600)
            os.utime(copy / name, (1_000_000_000, 1_000_000_000))
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", again, copy)
    assert (again / wheel.name).read_bytes() == wheel.read_bytes()


def sources():
    """Every tracked file under the packages' roots, by its name in a wheel."""
    said = run("git", "ls-files", "--", *(f"{root}/fedloom" for root in ROOTS))
    return {name.split("/", 1)[1] for name in said.splitlines() if (ROOT / name).exists()}


def test_the_wheel_holds_only_the_packages(wheel):
    """Types, templates, scripts with their licences; no tests."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names - {SITE} == sources()
    assert (SITE in names) == ARCHIVE.exists()  # built by `make docs`
    for part in ("protocol", "client", "cli", "strategies", "server", "simulation"):
        assert f"fedloom/{part}/py.typed" in names
    assert "fedloom/server/web/templates/base.html" in names
    assert any(name.endswith("htmx-LICENSE.txt") for name in names)
    assert "fedloom/__init__.py" not in names  # the packages share a namespace


def test_the_metadata_of_the_wheel_is_complete(wheel):
    """Version, licence, command, and few base requirements."""
    with zipfile.ZipFile(wheel) as archive:
        folder = f"fedloom-{__version__}.dist-info"
        about = Parser().parsestr(archive.read(f"{folder}/METADATA").decode())
        commands = archive.read(f"{folder}/entry_points.txt").decode()
        assert f"{folder}/licenses/LICENSE" in archive.namelist()
    assert (about["Version"], about["License-Expression"]) == (__version__, "Apache-2.0")
    assert "fedloom = fedloom.cli.main:main" in commands
    base = {
        re.split(r"[^a-z0-9]", r)[0] for r in about.get_all("Requires-Dist") if "extra" not in r
    }
    assert base == {"numpy", "grpcio", "protobuf", "cryptography", "crc32c", "click"}


def test_the_source_archive_builds_the_same_wheel(wheel, tmp_path):
    code = "import sys; from hatchling.build import build_sdist; print(build_sdist(sys.argv[1]))"
    environment = tmp_path / "env"
    run(sys.executable, "-m", "venv", environment)
    run(environment / "bin" / "pip", "install", "-q", "hatchling>=1.27")
    name = run(environment / "bin" / "python", "-c", code, tmp_path).split()[-1]
    run("tar", "-xf", tmp_path / name, "-C", tmp_path)
    source = tmp_path / name.removesuffix(".tar.gz")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path / "again", source)
    (again,) = (tmp_path / "again").iterdir()
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert {i.filename: i.CRC for i in one.infolist()} == {
            i.filename: i.CRC for i in other.infolist()
        }


def test_a_bundle_installs_without_a_network(unpacked, tmp_path):
    """In an empty environment, within the size limit of a device; the installation works."""
    target = tmp_path / "installed"
    run(unpacked / "install.sh", target, env=OFFLINE | {"PYTHON": sys.executable})
    tool = target / "bin" / "fedloom"
    assert run(tool, "--version").split() == ["fedloom", __version__]
    run(target / "bin" / "python", "-c", "import fedloom.client, fedloom.cli.device.client")
    done = subprocess.run(
        [tool, "client", "doctor", "--json"], capture_output=True, env=OFFLINE, cwd=tmp_path,
        check=False,
    )  # fmt: skip
    assert {f["check"] for f in json.loads(done.stdout)["findings"]} >= {"versions", "settings"}
    (packages,) = (target / "lib").glob("python3*/site-packages")
    tools = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
    size = sum(
        path.stat().st_size
        for path in target.rglob("*")
        if path.is_file()
        and not path.is_symlink()
        and not any(path.is_relative_to(packages / name) for name in tools)
    )
    print(f"the base installation takes {size / 1e6:.1f} MB")
    assert size <= BUDGET_BYTES


def test_a_bundle_for_the_other_platform_is_complete(bundles):
    """Only wheels, for the right machine, with their checksums."""
    for machine in ("x86_64", "aarch64"):
        with tarfile.open(bundles / f"fedloom-{__version__}-{machine}.tar") as archive:
            names = [Path(name).name for name in archive.getnames() if "/wheels/" in name]
        assert all(name.endswith(".whl") for name in names)
        binary = [name for name in names if "none-any" not in name]
        assert len(binary) >= 5
        assert all(machine in name for name in binary)


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        (lambda f: next(f.glob("wheels/numpy*")).write_bytes(b""), "SHA256SUMS"),
        (lambda f: _set(f, "platform", "riscv64"), "riscv64"),
        (lambda f: _set(f, "python", "3.99"), "3.99"),
    ],
)
def test_an_unsuitable_bundle_is_refused(unpacked, tmp_path, breaks, says):
    """Damaged, or for another machine or Python: before anything is installed."""
    breaks(unpacked)
    done = subprocess.run(
        [unpacked / "install.sh", tmp_path / "installed"],
        env=OFFLINE | {"PYTHON": sys.executable}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "installed").exists()


def _set(folder, key, value):
    path = folder / "bundle.conf"
    lines = [line for line in path.read_text().splitlines() if not line.startswith(key)]
    path.write_text("\n".join([*lines, f"{key}={value}"]) + "\n")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_script_refuses_wrong_arguments(tmp_path):
    """The error has the expected ones."""
    for words in (["--what", "x"], ["--platform"]):
        done = subprocess.run(
            [ROOT / "scripts" / "offline_bundle.sh", *words], capture_output=True, check=False
        )
        assert done.returncode == 2
        assert b"Expected" in done.stderr
