#!/bin/sh
# Install fedloom from this folder into a virtual environment; no network is asked.
#
#   ./install.sh [TARGET]        /opt/fedloom if left out; PYTHON=python3.11 chooses another Python
set -eu
cd "$(dirname "$0")"
target="${1:-/opt/fedloom}"
python="${PYTHON:-python3}"

fail() { echo "error: $1" >&2; exit 2; }

extras="" wanted="" platform=""
while IFS='=' read -r key value; do
  case "$key" in
    extras) extras="$value" ;;
    python) wanted="$value" ;;
    platform) platform="$value" ;;
  esac
done < bundle.conf

command -v "$python" >/dev/null || fail "Expected $python, got none. Debian and Raspberry Pi OS: apt install python3-venv."
here="$(uname -m)"
[ "$here" = "$platform" ] || fail "Expected a machine with $platform, got $here: take the bundle for that one."
has="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
[ "$has" = "$wanted" ] || fail "Expected Python $wanted, which this bundle is for, got $has: set PYTHON, or make a bundle with --python $has."
"$python" -c 'import ensurepip' 2>/dev/null || fail "Expected Python with venv, got one without. Debian and Raspberry Pi OS: apt install python3-venv."
sha256sum --quiet -c SHA256SUMS || fail "Expected the files of SHA256SUMS, got others: copy the bundle again."

"$python" -m venv "$target"
"$target/bin/pip" --disable-pip-version-check --quiet install --no-compile --no-index \
  --find-links wheels -c constraints.txt "fedloom${extras:+[$extras]}"
# Compiled is what runs here: that takes as much space again as the source. As with pip, a file that
# does not compile is no error.
idle='/tests/'
[ -n "$extras" ] || idle="$idle|/fedloom/(server|simulation)/"
"$target/bin/python" -m compileall -qq -j 0 -x "$idle" "$target"/lib/python*/site-packages || true
echo "Installed $("$target/bin/fedloom" --version) in $target. Next, on a device:"
echo "  $target/bin/fedloom client enroll --server HOST:7444 --token @FILE"
