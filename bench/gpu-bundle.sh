#!/usr/bin/env bash
# Makes a bundle of all that bench/gpu.sh needs on a bare machine: programs, the libraries that they need, the Python
# package, scripts. The machine needs only a driver, its C library, and for some parts Python with PyTorch.
#
#   bench/gpu-bundle.sh OUT.tar [--from BUILD] [--python PYTHON]… [--no-wheel]
#
#   --from      the build folder; build/dev if not given, which is then built
#   --python    makes the wheel of the Python package with this Python; may be repeated. Python 3.11 makes a wheel for
#               3.11, a later one a wheel for 3.12 and all later ones. /usr/bin/python3 if not given
#   --no-wheel  without the Python package: the parts that need it are skipped
set -euo pipefail
cd "$(dirname "$0")/.."
out="" from="" wheel=1 pythons=()
while [ $# -gt 0 ]; do
  case "$1" in
    --from) from=$2; shift 2 ;;
    --python) pythons+=("$2"); shift 2 ;;
    --no-wheel) wheel=""; shift ;;
    --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "bench/gpu-bundle.sh: unknown argument $1; see --help" >&2; exit 64 ;;
    *) out=$1; shift ;;
  esac
done
[ -n "$out" ] || { echo "bench/gpu-bundle.sh: name the file to make; see --help" >&2; exit 64; }
[ ${#pythons[@]} -gt 0 ] || pythons=(/usr/bin/python3)

programs=(holdfast holdfast-agent holdfast-coordinator holdfast-keeper holdfast-shim holdfast-bench)
tests=(client_cuda_test client_cuda_client_test)
plugins=(libholdfast.so.1 libholdfast-cuda.so libnccl-profiler-holdfast.so)
if [ -z "$from" ]; then
  from=build/dev
  cmake --preset dev >/dev/null
  ninja -C build/dev --quiet "${programs[@]}" "${tests[@]}" holdfast-cuda nccl-profiler-holdfast >&2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bundle=$work/bundle
mkdir -p "$bundle"/{bin,libexec,lib,python}
take() {  # FILE FOLDER: a stripped copy
  [ -e "$1" ] || { echo "bench/gpu-bundle.sh: $1 is missing; build it first: ninja -C $from" >&2; exit 1; }
  cp -L "$1" "$2/"
  strip --strip-unneeded "$2/$(basename "$1")"
}
for name in "${programs[@]}"; do take "$from/bin/$name" "$bundle/libexec"; done
for name in "${tests[@]}"; do take "$from/tests/$name" "$bundle/libexec"; done
for name in "${plugins[@]}"; do take "$from/lib/$name" "$bundle/lib"; done
# A program finds the plugin next to itself, and a process with libholdfast.so next to that.
ln -s ../lib/libholdfast-cuda.so "$bundle/libexec/libholdfast-cuda.so"

# The driver and the C library are the machine's own. The C++ library is used only where the machine's is older.
mkdir "$bundle/lib/fallback"
find "$bundle/libexec" "$bundle/lib" -type f -exec ldd {} + 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// {print $3}' |
  sort -u | while read -r library; do
    case "$(basename "$library")" in
      libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | libresolv.so.* | ld-linux* | libcuda.so.*) ;;
      libholdfast*) ;;
      libstdc++.so.* | libgcc_s.so.*) take "$library" "$bundle/lib/fallback" ;;
      *) take "$library" "$bundle/lib" ;;
    esac
  done

# The libraries must not affect other programs of the machine, so each program has a wrapper that names them.
for program in "$bundle"/libexec/*; do
  case "$program" in *.so) continue ;; esac
  cat >"$bundle/bin/$(basename "$program")" <<'END'
#!/usr/bin/env bash
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
paths=$here/lib
[ ! -e "$here/use-fallback" ] || paths+=:$here/lib/fallback
LD_LIBRARY_PATH=$paths${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$here/libexec/$(basename "$0")" "$@"
END
  chmod +x "$bundle/bin/$(basename "$program")"
done

if [ -n "$wheel" ]; then
  for python in "${pythons[@]}"; do deploy/wheel.sh "$python" "$bundle/python" "$from" >&2; done
fi
cp bench/gpu_*.py tests/python/cluster.py "$bundle/python/"
cp client/examples/nanogpt/train.py "$bundle/python/nanogpt.py"
cp bench/gpu.sh "$bundle/"
"$bundle/bin/holdfast" --version >"$bundle/version"

mkdir -p "$(dirname "$out")"
tar --create --gzip --owner=0 --group=0 --numeric-owner --file "$out.part" -C "$work" bundle
bytes=$(stat --format=%s "$out.part")
limit=60000000
if [ "$bytes" -gt $limit ]; then
  rm -f "$out.part"
  echo "bench/gpu-bundle.sh: the bundle has $bytes bytes; the limit is $limit. Leave out a wheel (--no-wheel)" >&2
  exit 1
fi
mv "$out.part" "$out"
echo "$out: $bytes bytes, $(<"$bundle/version")"
