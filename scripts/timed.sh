#!/usr/bin/env bash
# Makes targets one after another, up to the first that fails, and prints how long each took.
#
#   scripts/timed.sh lint types 'crash KILLS=100'
#   scripts/timed.sh --beside 'flower; hf' docs console
#
# --beside: targets that are made at the same time as the others, for those that use one core; what
# they print comes at the end.
set -uo pipefail
lines=()
beside=
if [ "${1:-}" = --beside ]; then
  IFS=';' read -ra targets <<< "$2"
  shift 2
  printed=$(mktemp)
  set -m  # in a process group of its own, to be ended with all that it began
  "${BASH_SOURCE[0]}" "${targets[@]}" > "$printed" 2>&1 &
  beside=$!
  set +m
fi

report() {
  status=$?
  if [ -n "$beside" ]; then
    [ $status = 0 ] || kill -- "-$beside" 2>/dev/null
    wait "$beside"
    other=$?
    cat "$printed"
    rm -f "$printed"
    [ $status = 0 ] && status=$other
  fi
  printf '%s\n' "${lines[@]}"
  exit $status
}
trap report EXIT
trap 'exit 130' INT TERM

for target in "$@"; do
  begun=$SECONDS
  read -ra words <<< "$target"
  "${MAKE:-make}" --no-print-directory "${words[@]}"
  status=$?
  took=$((SECONDS - begun))
  lines+=("$(printf '%3d:%02d  make %s%s' $((took / 60)) $((took % 60)) "${words[*]}" \
    "$([ $status = 0 ] || echo "  FAILED with $status")")")
  [ $status = 0 ] || exit $status
done
