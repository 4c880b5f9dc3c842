#!/usr/bin/env bash
# Everything that an installation needs, in one archive for machines without a network.
#
#   scripts/offline_bundle.sh [--extras server,…] [--python 3.11] [--platform x86_64] … [--out FOLDER]
#
# Makes FOLDER/fedloom-VERSION-PLATFORM.tar for each platform (x86_64 and aarch64 unless said): wheels
# of fedloom and of all it depends on, in the versions of constraints.txt, their checksums, and
# install.sh, which asks no network. Only wheels are taken: nothing is compiled on the device.
set -euo pipefail
cd "$(dirname "$0")/.."

extras="" python="3.11" out="out/bundle" platforms=()
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || { echo "Expected a value after $1." >&2; exit 2; }
  case "$1" in
    --extras) extras="$2" ;;
    --python) python="$2" ;;
    --platform) platforms+=("$2") ;;
    --out) out="$2" ;;
    *) echo "Expected --extras, --python, --platform or --out, got $1." >&2; exit 2 ;;
  esac
  shift 2
done
[ ${#platforms[@]} -gt 0 ] || platforms=(x86_64 aarch64)
pip=("${PYTHON:-python3}" -m pip --disable-pip-version-check --quiet)

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
source="$work/source"
mkdir "$source"
cp -r pyproject.toml README.md LICENSE server client_sdk strategies simulations "$source"
case ",$extras," in
  *,server,*) ;;
  *) rm -f "$source/server/fedloom/server/web/documentation.zip" ;;  # 3 MB that no device serves
esac
"${pip[@]}" wheel --no-deps --wheel-dir "$work/own" "$source"
wheel="$(cd "$work/own" && ls fedloom-*.whl)"
version="${wheel#fedloom-}" version="${version%%-*}"

for platform in "${platforms[@]}"; do
  case "$platform" in
    x86_64|aarch64) ;;
    *) echo "Expected a platform of x86_64 or aarch64, got $platform." >&2; exit 2 ;;
  esac
  name="fedloom-$version-$platform"
  folder="$work/$name"
  mkdir -p "$folder/wheels"
  # From the oldest glibc on: 2.17 to that of Debian 12 and Raspberry Pi OS.
  tags=()
  for glibc in 17 24 26 27 28 31 34 35 36; do tags+=(--platform "manylinux_2_${glibc}_$platform"); done
  tags+=(--platform "manylinux2014_$platform")
  [ "$platform" = aarch64 ] || tags+=(--platform "manylinux2010_$platform" --platform "manylinux1_$platform")
  "${pip[@]}" download --dest "$folder/wheels" --only-binary=:all: --implementation cp \
    --python-version "$python" "${tags[@]}" -c constraints.txt \
    "$work/own/$wheel${extras:+[$extras]}"
  cp constraints.txt deploy/offline/install.sh "$folder/"
  cp deploy/systemd/fedloom-server.service LICENSE "$folder/"
  printf 'extras=%s\npython=%s\nplatform=%s\n' "$extras" "$python" "$platform" > "$folder/bundle.conf"
  (cd "$folder" && find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort \
    | xargs -d '\n' sha256sum > SHA256SUMS)
  tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-0}" \
    -C "$work" -cf "$out/$name.tar" "$name"
  (cd "$out" && sha256sum "$name.tar" > "$name.tar.sha256")
  echo "$out/$name.tar  $(du -h "$out/$name.tar" | cut -f1), $(ls "$folder/wheels" | wc -l) wheels"
done
