"""What an edge device must carry: the base install's size, and the time that importing it takes.

Makes a fresh virtual environment with the base install of this repository and measures it. The
times are medians of fresh processes, beside the bare interpreter's in the same run. Prints a table
and writes out/footprint.json.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from deployment import OUT, report

ROOT = OUT.parent
TOOLS = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
"""What `python -m venv` brings by itself."""
CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
HEAVY = ("torch", "sqlalchemy", "fastapi", "uvicorn", "sklearn", "matplotlib", "pydantic")
MB = 1e6


def install(directory):
    """A fresh environment with the base install; returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    python = directory / "bin" / "python"
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraints = ROOT / "constraints.txt"
    if constraints.exists():
        command += ["--constraint", str(constraints)]
    subprocess.run([*command, str(ROOT)], check=True, env=CLEAN)
    return python


def size_bytes(path):
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file() and not p.is_symlink())


def seconds(command, repeats):
    """Median seconds of a command's fresh processes, after one that compiles and warms up."""
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=CLEAN)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def import_seconds(python, module, repeats):
    """Median seconds of the import statement alone, each time in a fresh process."""
    code = (
        f"import time; begin = time.perf_counter(); import {module}; "
        "print(time.perf_counter() - begin)"
    )
    times = [
        float(subprocess.check_output([str(python), "-c", code], env=CLEAN))
        for _ in range(repeats + 1)
    ]
    return statistics.median(times[1:])


def heavy_modules(python, module):
    """What of the heavy libraries an import pulls in."""
    code = f"import sys, {module}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    return subprocess.check_output([str(python), "-c", code], text=True, env=CLEAN).split()


def slowest_imports(python, module, count=8):
    """The modules that take longest by themselves, in milliseconds."""
    command = [str(python), "-X", "importtime", "-c", f"import {module}"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, env=CLEAN).stderr
    rows = [line.removeprefix("import time:").split("|") for line in text.splitlines()[1:]]
    costs = sorted(((int(r[0]) / 1e3, r[2].strip()) for r in rows), reverse=True)
    return [f"{name} {ms:.0f}" for ms, name in costs[:count]]


def packages(directory):
    """The largest folders of site-packages, in MB."""
    sizes = {p.name: size_bytes(p) / MB for p in directory.iterdir() if p.is_dir()}
    return sorted(((mb, name) for name, mb in sizes.items()), reverse=True)[:8]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--python", type=Path, help="an environment that is there already")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedloom-") as temporary:
        python = arguments.python or install(Path(temporary))
        measure(python, arguments.repeats)


def measure(python, repeats):
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.check_output([str(python), "-c", where], text=True, env=CLEAN).strip())
    whole = size_bytes(site) / MB
    tools = sum(size_bytes(site / name) for name in TOOLS if (site / name).exists()) / MB
    command = str(python.with_name("fedloom"))
    heavy = heavy_modules(python, "fedloom.client")
    rows = [
        ("what the install brings, MB", whole - tools, "< 128"),
        ("… with the venv's own pip and setuptools, MB", whole, ""),
        ("import fedloom.client, s", import_seconds(python, "fedloom.client", repeats), "< 0.3"),
        ("import numpy, s", import_seconds(python, "numpy", repeats), ""),
        ("import grpc, s", import_seconds(python, "grpc", repeats), ""),
        ("fedloom --help, s", seconds([command, "--help"], repeats), ""),
        ("fedloom client --help, s", seconds([command, "client", "--help"], repeats), ""),
        ("bare interpreter, s", seconds([str(python), "-c", ""], repeats), ""),
        ("heavy libraries imported", ", ".join(heavy) or "none", "none"),
    ]
    largest = packages(site)
    slowest = slowest_imports(python, "fedloom.client")
    columns = ("", "measured", "target")
    report("footprint", columns, rows, packages_mb=largest, slowest_imports_ms=slowest)
    print("largest, MB: " + ", ".join(f"{name} {mb:.0f}" for mb, name in largest))
    print("slowest imports by themselves, ms: " + ", ".join(slowest))


if __name__ == "__main__":
    main()
