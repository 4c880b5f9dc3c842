"""Fuzz the HTTP API from its own description, over its TCP port: no request may cause a 5xx.

    python tests/support/fuzz.py PATH/schemathesis [--examples 12] [--seed 1]

Schemathesis gets an administrator's token, so that its requests reach the routes, and a run and a
client exist for routes with an id. At the end the same server must still answer.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from fedloom.server.access import passwords
from support.door import Door
from support.visitor import Visitor

CHECKS = "not_a_server_error,content_type_conformance,response_schema_conformance,ignored_auth"
ENDLESS = "/v1/events"


def main():
    """Run the fuzzer against a server of this process; exit with its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("schemathesis", type=Path)
    parser.add_argument("--examples", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    passwords.COST = passwords.Cost(n=16, r=1, p=1)
    with (
        tempfile.TemporaryDirectory() as folder,
        Door(Path(folder) / "state", console="127.0.0.1:0") as door,
    ):
        code = fuzz(door, Path(folder), given)
    sys.exit(code)


def fuzz(door, folder, given):
    """Fuzz a server and check that it still works."""
    run = door.submit(folder)
    door.contexts.ledger.add_token("01", "hash", "ward-1", 4e9)
    door.contexts.ledger.enrol("01", "01", 4e9)
    _, made = door.ask("POST", "/api-tokens", {"name": "fuzz", "scope": "admin"})
    admin = Visitor(door.site, token=made["token"])
    description = admin.ask("GET", "/v1/openapi.json").document
    lead(description, run)
    schema = folder / "openapi.json"
    schema.write_text(json.dumps(description))
    ended = subprocess.run(
        [
            given.schemathesis.absolute(), "run", schema, "--url", door.site.url,
            "-H", f"Authorization: Bearer {made['token']}",
            "--checks", CHECKS, "--phases", "examples,coverage,fuzzing",
            "--max-examples", str(given.examples), "--seed", str(given.seed),
            "--exclude-path", ENDLESS, "--continue-on-failure", "--request-timeout", "30",
            "--warnings", "off", "--generation-database", "none", "--report-dir", folder,
        ],
        check=False, cwd=folder,
    )  # fmt: skip
    answer = admin.ask("GET", "/v1/server")
    assert answer.status == 200, answer
    print(f"the server lives; {door.contexts.ledger.trail.head().id} entries in the audit trail")
    return ended.returncode


def lead(description, run):
    """Give parameters existing examples, so that not every answer is 404."""
    known = {"run": run, "name": "ward-1", "number": 1, "action": "pause"}
    for methods in description["paths"].values():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path" and parameter["name"] in known:
                    parameter["example"] = known[parameter["name"]]


if __name__ == "__main__":
    main()
