"""Checks of a device that need no network: versions, disk, memory, policy, conditions."""

import os
import platform
import shutil
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from fedloom.client.budgets import machine
from fedloom.client.conditions import ConditionGate
from fedloom.client.config import ClientConfig
from fedloom.client.doctor.finding import CheckResult, fail, ok, skip, warn
from fedloom.client.owner.policy import load, words
from fedloom.protocol.errors import UsageError
from fedloom.protocol.version import __version__

MB = 1e6
LITTLE_BYTES = 200e6
"""Free disk or memory below which the doctor warns: too little for most trainings."""
_SHOWN = ("numpy", "grpcio", "protobuf", "cryptography", "torch", "scikit-learn")


def versions() -> CheckResult:
    """Report the installed versions."""
    found = []
    for name in _SHOWN:
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    python = platform.python_version()
    machine_name = f"{platform.system()} {platform.machine()}"
    return ok("versions", f"fedloom {__version__}, Python {python}, {', '.join(found)}; "
              f"{machine_name}")  # fmt: skip


def disk(config: ClientConfig) -> CheckResult:
    """Check that the state directory is writable and has room."""
    folder = config.state_dir
    if not folder.is_dir():
        return fail(
            "disk", f"there is no {folder}", "run `fedloom client enroll` with a token, or correct "
            "state_dir in the settings"
        )  # fmt: skip
    probe = folder / f".doctor-{os.getpid()}"
    try:
        probe.write_bytes(bytes(1 << 16))
    except OSError as error:
        return fail(
            "disk",
            f"{folder} cannot be written to: {error.strerror}",
            "free some space"
            if error.errno in {28, 122}  # ENOSPC, EDQUOT
            else f"run the client as the owner of {folder}, or `chown -R` it",
        )
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    return _room(config, folder)


def _room(config: ClientConfig, folder: Path) -> CheckResult:
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    free, quota = float(shutil.disk_usage(folder).free), config.budgets.disk_mb
    said = f"{_mb(free)} free, {_mb(held)} used by {folder}"
    model = largest_model(folder)
    if quota is not None:
        said += f", of disk_mb = {quota:g}"
        free = min(free, quota * MB - held + _reclaimable(folder))
    needs = 2.0 * model  # the next model, and the update
    if model and needs > free:
        return warn(
            "disk", f"{said}; the last model of {_mb(model)} with its update needs {_mb(needs)}",
            "free some space, or raise budgets.disk_mb: such offers are declined",
        )  # fmt: skip
    if free < LITTLE_BYTES:
        return warn("disk", said, "free some space: large models will be declined")
    return ok("disk", said)


def _reclaimable(folder: Path) -> float:
    """Bytes of files that the agent deletes when it needs room."""
    kept = (folder / "models", folder / "checkpoints", folder / "memory")
    return float(sum(p.stat().st_size for k in kept for p in k.glob("**/*") if p.is_file()))


def largest_model(folder: Path) -> int:
    """Bytes of the largest stored model; 0 if there is none."""
    return max((p.stat().st_size for p in (folder / "models").glob("*.safetensors")), default=0)


def memory(config: ClientConfig) -> CheckResult:
    """Check that a training fits into memory."""
    free, budgets = machine.available_bytes(), config.budgets
    if free == float("inf"):
        return skip("memory", "this system does not report free memory")
    said = f"{_mb(free)} free"
    if budgets.memory_mb is not None:
        said += f", memory_mb = {budgets.memory_mb:g}"
        free = min(free, budgets.memory_mb * MB - machine.resident_bytes())
    needs = budgets.memory_factor * largest_model(config.state_dir)
    if needs > free:
        return warn(
            "memory",
            f"{said}; a training of the last model is expected to need {_mb(needs)}",
            "stop other programs, raise budgets.memory_mb, or lower budgets.memory_factor if the "
            "training needs less: such offers are declined",
        )
    if free < LITTLE_BYTES:
        return warn("memory", said, "stop other programs: large models will be declined")
    fits = f"; fits models up to {_mb(free / budgets.memory_factor)}"
    return ok("memory", said + (fits if budgets.memory_factor else ""))


def policy(config: ClientConfig) -> CheckResult:
    """Report the owner's policy."""
    if config.policy is None:
        return ok("policy", "there is none: nothing is restricted")
    try:
        said = words(load(config.policy))
    except UsageError as error:
        return fail("policy", str(error), "correct it: until then every offer is declined")
    return ok("policy", " ".join(said))


def conditions(config: ClientConfig) -> CheckResult:
    """Check whether the conditions allow training now."""
    try:
        objection = ConditionGate(config.conditions).lost(training=False)
    except UsageError as error:
        return fail(
            "conditions", str(error), "correct [conditions] in the settings; for a probe beside "
            "the client's code, give --code"
        )  # fmt: skip
    if objection is not None:
        return warn(
            "conditions",
            f"an offer would be declined now: {objection}",
            "nothing if intended; otherwise change [conditions] in the settings",
        )
    return ok("conditions", "an offer would be accepted now")


def _mb(size_bytes: float) -> str:
    if size_bytes >= 1e9:
        return f"{size_bytes / 1e9:,.1f} GB"
    return f"{size_bytes / MB:,.1f} MB" if size_bytes >= 1e5 else f"{size_bytes / 1e3:,.1f} kB"
