"""What container files and manifests must keep to, beyond their schemas; 1 where they do not."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from dockerfile_parse import DockerfileParser

DEPLOY = Path(__file__).parent.parent / "deploy"


def lint_containerfile(path: Path) -> Iterator[str]:  # noqa: C901 - one rule after the other
    """Faults of one container file, as sentences."""
    with path.open("rb") as file:
        steps = DockerfileParser(fileobj=file).structure
    words = [(s["instruction"], s["value"]) for s in steps if s["instruction"] != "COMMENT"]
    last = max(i for i, (name, _) in enumerate(words) if name == "FROM")
    final = words[last:]
    names = [name for name, _ in final]
    if words[0][0] != "ARG" or any(v.split()[0] != "${PYTHON}" for n, v in words if n == "FROM"):
        yield "the base image must be the argument PYTHON, so that it can be pinned by digest"
    if sum(name == "FROM" for name, _ in words) < 2:
        yield "compilers and caches must stay in a stage of their own"
    users = [value for name, value in final if name == "USER"]
    if not users or not users[-1].split(":")[0].isdigit() or users[-1].startswith("0"):
        yield "the last USER must be a number other than 0"
    for name in ("HEALTHCHECK", "STOPSIGNAL", "VOLUME"):
        if name not in names:
            yield f"there must be a {name}"
    for name in ("ENTRYPOINT", "CMD"):
        value = next((value for n, value in final if n == name), "")
        if not value.startswith("[") or not isinstance(json.loads(value), list):
            yield f"{name} must be a list, so that signals reach the program"
    for name, value in words:
        if name == "ADD":
            yield "COPY is enough: ADD also unpacks and downloads"
        if name == "RUN" and "pip" in value and "--no-cache-dir" not in value:
            yield "pip must keep no cache"
        if name == "COPY" and value.split()[0] == ".":
            yield "copy what is needed by name"
        if any(word in value.upper() for word in ("PASSWORD=", "SECRET=", "TOKEN=")):
            yield f"no secrets in an image: {name} {value}"


def lint_pod(name: str, pod: dict[str, Any]) -> Iterator[str]:  # noqa: C901 - as above
    """Faults of a pod's description, as sentences."""
    context = pod.get("securityContext", {})
    if context.get("runAsNonRoot") is not True or not context.get("runAsUser"):
        yield f"{name}: must run as a user other than root"
    if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield f"{name}: must have the runtime's seccomp profile"
    if context.get("fsGroup") and context.get("fsGroupChangePolicy") != "OnRootMismatch":
        yield f"{name}: an fsGroup must not open keys to the group at every start"
    if pod.get("automountServiceAccountToken") is not False:
        yield f"{name}: needs no account of the cluster"
    for container in pod["containers"] + pod.get("initContainers", []):
        what = f"{name}/{container['name']}"
        locked = container.get("securityContext", {})
        if locked.get("readOnlyRootFilesystem") is not True:
            yield f"{what}: the root file system must be read-only"
        if locked.get("allowPrivilegeEscalation") is not False:
            yield f"{what}: must not gain privileges"
        if locked.get("capabilities") != {"drop": ["ALL"]}:
            yield f"{what}: must drop all capabilities"
        if "memory" not in container.get("resources", {}).get("limits", {}):
            yield f"{what}: must have a limit of memory"
        if container["image"].endswith(":latest") or ":" not in container["image"]:
            yield f"{what}: must name a version of its image"
    for container in pod["containers"]:
        if "livenessProbe" not in container:
            yield f"{name}/{container['name']}: must have a livenessProbe"


def lint_manifests(path: Path) -> Iterator[str]:
    """Faults of a file of manifests, as sentences."""
    found = [document for document in yaml.safe_load_all(path.read_text()) if document]
    for document in found:
        name = f"{document['kind']} {document['metadata']['name']}"
        if document["kind"] in {"Deployment", "StatefulSet", "DaemonSet"}:
            spec = document["spec"]
            labels = spec["template"]["metadata"]["labels"]
            if not spec["selector"]["matchLabels"].items() <= labels.items():
                yield f"{name}: its selector does not select its pods"
            yield from lint_pod(name, spec["template"]["spec"])
        if document["kind"] == "Secret":
            yield f"{name}: make Secrets by command, not in a file"


def lint_compose(path: Path) -> Iterator[str]:
    """Faults of a compose file, as sentences."""
    for name, service in yaml.safe_load(path.read_text())["services"].items():
        if service.get("read_only") is not True:
            yield f"{name}: the root file system must be read-only"
        if service.get("cap_drop") != ["ALL"]:
            yield f"{name}: must drop all capabilities"
        if "no-new-privileges:true" not in service.get("security_opt", []):
            yield f"{name}: must not gain privileges"
        if "build" not in service:
            if ":" not in service["image"] or service["image"].endswith(":latest"):
                yield f"{name}: must name a version of its image"
            continue
        file = (
            path.parent / service["build"]["context"] / service["build"]["dockerfile"]
        ).resolve()
        if not file.is_file():
            yield f"{name}: there is no {file}"


def main() -> bool:
    """Lint all; 1 where there is a fault."""
    checks = [
        *((lint_containerfile, path) for path in DEPLOY.glob("containers/*.Containerfile")),
        *((lint_manifests, path) for path in DEPLOY.glob("kubernetes/*.yaml")),
        *((lint_compose, path) for path in DEPLOY.glob("containers/compose*.yaml")),
    ]
    faults = [f"{path.name}: {fault}" for check, path in checks for fault in check(path)]
    print("\n".join(faults) if faults else f"  {len(checks)} files, no fault")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
