#!/usr/bin/env bash
# Install a device and a server from requirements/, every file checked by its hash, and list what is
# there as CycloneDX 1.6 in out/sbom. `make sbom` runs it. ENV has cyclonedx-bom.
#
#   scripts/sbom.sh ENV
set -euo pipefail
cd "$(dirname "$0")/.."
pip=("$1/bin/python" -m pip --disable-pip-version-check --quiet)
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir -p out/sbom
"${pip[@]}" wheel --no-deps --wheel-dir "$work" .
for kind in device server; do
  "$1/bin/python" -m venv --without-pip "$work/$kind"
  "${pip[@]}" --python "$work/$kind" install --require-hashes --only-binary :all: \
    -r "requirements/$kind.txt"
  "${pip[@]}" --python "$work/$kind" install --no-deps "$work"/fedloom-*.whl
  "${pip[@]}" --python "$work/$kind" check
  "$1/bin/cyclonedx-py" environment --output-reproducible --sv 1.6 \
    -o "out/sbom/$kind.cdx.json" "$work/$kind/bin/python"
  echo "out/sbom/$kind.cdx.json  $(grep -c '"bom-ref"' "out/sbom/$kind.cdx.json") components"
done
