#!/usr/bin/env bash
# Makes targets one after another, up to the first that fails, and prints how long each took.
#
#   scripts/timed.sh lint types 'crash KILLS=100'
set -uo pipefail
lines=()
trap 'printf "%s\n" "${lines[@]}"' EXIT
for target in "$@"; do
  begun=$SECONDS
  read -ra words <<< "$target"
  "${MAKE:-make}" --no-print-directory "${words[@]}"
  status=$?
  took=$((SECONDS - begun))
  lines+=("$(printf '%3d:%02d  make %s%s' $((took / 60)) $((took % 60)) "$target" \
    "$([ $status = 0 ] || echo "  FAILED with $status")")")
  [ $status = 0 ] || exit $status
done
