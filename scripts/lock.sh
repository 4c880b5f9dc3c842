#!/usr/bin/env bash
# Make requirements/: what a device and what a server installs, in the versions of constraints.txt,
# with the hash of every file of each. `make locks` runs it; it needs a package index.
#
#   scripts/lock.sh ENV
set -euo pipefail
cd "$(dirname "$0")/.."
compile() {  # FILE [--extra EXTRA]…
  local file="requirements/$1" made
  made="$(mktemp)"
  "$bin/pip-compile" --quiet --generate-hashes --strip-extras --no-header --no-annotate \
    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
    -c constraints.txt -o "$made" "${@:2}" pyproject.toml
  { echo "# Made by make locks. pip install --require-hashes -r $file"; grep -v '^$' "$made"; } > "$file"
  rm "$made"
}
bin="$1/bin"
mkdir -p requirements
compile device.txt
compile server.txt --extra server --extra oidc
