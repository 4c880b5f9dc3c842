#!/usr/bin/env bash
# Runs pytest. With FEDLOOM_TEST_AGAIN=1, a few tests that fail are run once more, without others
# beside them: hundreds of tests start processes, kill them and wait for them, on a machine that
# others may use. What passes only then is listed at the end: it is to be mended all the same.
#
#   FEDLOOM_TEST_AGAIN=1 scripts/pytest.sh -n 3 -m long
set -uo pipefail
MOST=5  # more failures have a cause of their own

if [ "${FEDLOOM_TEST_AGAIN:-}" != 1 ]; then
  exec pytest "$@"
fi
cache=$(mktemp -d)  # of its own: other tests may run at the same time
trap 'rm -rf "$cache"' EXIT
pytest -o cache_dir="$cache" "$@"
status=$?
[ $status = 1 ] || exit $status
read_names='import json, sys; print("\n".join(json.load(open(sys.argv[1]))))'
names=$(python -c "$read_names" "$cache/v/cache/lastfailed") || exit $status
[ "$(wc -l <<< "$names")" -le $MOST ] || exit $status
printf '\n=== These tests failed. Once more, alone:\n%s\n\n' "$names"
FEDLOOM_TEST_UNTIL=inf pytest -o cache_dir="$cache" "$@" -n 0 --last-failed --last-failed-no-failures none || exit $?
printf '\n=== These tests failed beside others, and passed alone:\n%s\n' "$names"
