#!/usr/bin/env bash
# Makes the protobuf modules from the .proto files; `--check` only says whether they have drifted.
set -euo pipefail
cd "$(dirname "$0")/.."
out=client_sdk
if [ "${1:-}" = --check ]; then
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
fi
python -m grpc_tools.protoc -I client_sdk --python_out="$out" --pyi_out="$out" \
  client_sdk/fedloom/protocol/v1/*.proto
if [ "${1:-}" = --check ]; then
  for file in "$out"/fedloom/protocol/v1/*; do
    diff -q "$file" "client_sdk/fedloom/protocol/v1/$(basename "$file")" >/dev/null || {
      echo "generated code has drifted: $(basename "$file"); run scripts/protogen.sh" >&2
      exit 1
    }
  done
fi
