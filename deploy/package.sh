#!/usr/bin/env bash
# Makes the Debian packages of Holdfast: holdfast-server, holdfast-cli, holdfast-drills, libholdfast1, libholdfast-dev.
# Or, with --wheel, the Python package.
#
#   deploy/package.sh [--out FOLDER] [--from BUILD] [--version VERSION]
#   deploy/package.sh --wheel [--out FOLDER] [--from BUILD] [--python PYTHON]
#
#   --out      where the packages go; build/packages if not given
#   --from     packages the programs of this build folder instead of building a release
#   --version  the version of the Debian packages; the project's version and the commit if not given
#   --python   the Python that builds the wheel; /usr/bin/python3 if not given. The wheel of 3.11 is for 3.11 alone.
#              The wheel of a newer one uses the stable ABI and is for 3.12 and all later ones
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=$root/build/packages from="" version="" wheel="" python=/usr/bin/python3
while [ $# -gt 0 ]; do
  case "$1" in
    --out) out=$2; shift 2 ;;
    --from) from=$(cd "$2" && pwd); shift 2 ;;
    --version) version=$2; shift 2 ;;
    --wheel) wheel=1; shift ;;
    --python) python=$2; shift 2 ;;
    --help) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "deploy/package.sh: unknown argument $1; see --help" >&2; exit 64 ;;
  esac
done

mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$root"
if [ -n "$wheel" ]; then
  exec deploy/wheel.sh "$python" "$out" "$from"
fi
for tool in dh dpkg-buildpackage help2man; do
  command -v "$tool" >/dev/null || { echo "deploy/package.sh: $tool is missing; run deploy/install-deps.sh --ops" >&2; exit 1; }
done
if [ -z "$version" ]; then
  version=$(sed -n 's/^project(holdfast VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
  version+="+$(git rev-list --count HEAD 2>/dev/null || echo 0).g$(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/holdfast"
git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- --create | tar -x -C "$work/holdfast"
cp -r deploy/debian "$work/holdfast/debian"
cat >"$work/holdfast/debian/changelog" <<END
holdfast ($version) unstable; urgency=medium

  * The commits of the source repository have the changes.

 -- Holdfast developers <holdfast@lists.example.org>  $(git log -1 --format=%cD 2>/dev/null || date -R)
END
(cd "$work/holdfast" && HOLDFAST_BUILD=$from dpkg-buildpackage --build=binary --unsigned-changes --no-check-builddeps >&2)
rm -f "$out"/*.deb
cp "$work"/*.deb "$out"
ls "$out"/*.deb
