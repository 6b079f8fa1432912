#!/usr/bin/env bash
# Installs the Debian 12 packages for building and testing Holdfast. docs/dependencies.md has the reason for each.
# Does nothing when all are installed.
set -euo pipefail

packages=(
  g++ cmake ninja-build pkg-config git ca-certificates mold
  liburing-dev libisal-dev libssl-dev openssl
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc librocksdb-dev prometheus-cpp-dev
  libcpp-httplib-dev
  libexpected-dev libfmt-dev libspdlog-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  util-linux mount e2fsprogs iproute2 nftables python3-venv python3-dev
)
case "${1:-}" in
  "") ;;
  --bench) packages+=(fio iperf3) ;;
  --ops)
    packages+=(
      chromium
      chromium-driver
      debhelper
      etcd-server
      fakeroot
      help2man
      libseccomp-dev
      lintian
      mmdebstrap
      munge
      prometheus
      python3-pip
      python3-selenium
      slurm-wlm
      systemd
      zsh
    )
    ;;
  --lint) packages+=(clang-14 clang-tidy-14 clang-format-14 libclang-rt-14-dev) ;;
  *) echo "usage: deploy/install-deps.sh [--bench | --lint | --ops]" >&2; exit 64 ;;
esac

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
# axe-core, which examines the page. Debian has no package of it; without it a test is skipped.
install_axe() {
  [ "${1:-}" = --ops ] && [ "$(id -u)" -eq 0 ] || return 0
  local folder=/usr/local/share/holdfast-tests
  [ -n "$(find "$folder" -name axe.min.js 2>/dev/null)" ] && return 0
  /usr/bin/python3 -m pip install --quiet --no-deps --target "$folder" axe-playwright-python==0.1.8 ||
    echo "axe-core could not be installed: the test of accessibility is skipped" >&2
}

[ ${#missing[@]} -eq 0 ] && { install_axe "$@"; exit 0; }

if [ "$(id -u)" -ne 0 ]; then
  echo "deploy/install-deps.sh: missing packages: ${missing[*]}" >&2
  echo "Run this once as root, or: apt-get install ${missing[*]}" >&2
  exit 1
fi
echo "Installing ${#missing[@]} Debian packages" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
install_axe "$@"
