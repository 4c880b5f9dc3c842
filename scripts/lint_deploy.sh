#!/usr/bin/env bash
# Check everything in deploy/ as far as that goes without a container engine or a cluster; `make
# lint-deploy` runs it. ENV is a virtual environment with yamllint, kubernetes-validate,
# check-jsonschema and dockerfile-parse.
#
#   scripts/lint_deploy.sh ENV
set -euo pipefail
cd "$(dirname "$0")/.."
bin="$1/bin"

echo "YAML"
"$bin/yamllint" --strict -c deploy/.yamllint deploy
echo "Kubernetes manifests, against the schemas of three versions"
for version in 1.30 1.33 1.36; do
  "$bin/kubernetes-validate" --strict --no-warn --quiet -k "$version" deploy/kubernetes/*.yaml
done
echo "Compose files, against the specification's schema"
"$bin/check-jsonschema" --builtin-schema vendor.compose-spec deploy/containers/compose*.yaml
echo "Container files, and what an image, a pod and a unit must keep to"
"$bin/python" scripts/lint_containers.py
echo "Shell scripts"
for script in scripts/*.sh; do bash -n "$script"; done
sh -n deploy/offline/install.sh
if command -v shellcheck >/dev/null; then shellcheck -S warning scripts/*.sh deploy/offline/install.sh; fi
echo "systemd units"
if command -v systemd-analyze >/dev/null; then
  # As they are, but for a user and a program that this machine has.
  unit="$(mktemp -d)"
  trap 'rm -rf "$unit"' EXIT
  sed -e 's#^ExecStart=.*#ExecStart=/bin/true#' -e 's#^User=.*#User=root#' \
    deploy/systemd/fedloom-server.service > "$unit/fedloom-server.service"
  systemd-analyze verify "$unit/fedloom-server.service"
  systemd-analyze security --offline=yes --threshold=25 --no-pager "$unit/fedloom-server.service" \
    | tail -1
else
  echo "  left out: systemd-analyze is not installed"
fi
