"""The lists of requirements/ name what an installation needs: tested versions, with hashes."""

import re
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
EXTRAS = {"device": {""}, "server": {"", "server", "oidc"}}


def versions(path):
    found = re.findall(r"^([\w.-]+)==([^\s;]+)", path.read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def needed(name, extras):
    """The names of all that a package needs, by the metadata of what is installed here."""
    found, queue = set(), [(name, frozenset(extras))]
    while queue:
        name, extras = queue.pop()
        for line in requires(name) or ():
            wanted = Requirement(line)
            marker = wanted.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                step = (canonicalize_name(wanted.name), frozenset({"", *wanted.extras}))
                if step not in found:
                    found.add(step)
                    queue.append(step)
    return {name for name, _ in found}


@pytest.mark.parametrize("kind", EXTRAS)
def test_a_lock_names_exactly_what_is_needed(kind):
    """In the versions of constraints.txt; `make locks` makes it anew."""
    locked = versions(ROOT / "requirements" / f"{kind}.txt")
    assert set(locked) == needed("fedloom", EXTRAS[kind])
    tested = versions(ROOT / "constraints.txt")
    assert locked == {name: tested[name] for name in locked}


@pytest.mark.parametrize("kind", EXTRAS)
def test_a_lock_has_hashes_of_every_package_and_names_no_index(kind):
    text = (ROOT / "requirements" / f"{kind}.txt").read_text()
    packages = re.split(r"\n(?=\w)", text)[1:]
    assert len(packages) == len(versions(ROOT / "requirements" / f"{kind}.txt"))
    for package in packages:
        first, *hashes = package.replace(" \\", "").strip().splitlines()
        assert "==" in first
        assert hashes
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", line) for line in hashes)
