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
      libseccomp-dev
      munge
      prometheus
      slurm-wlm
      systemd
    )
    ;;
  --lint) packages+=(clang-14 clang-tidy-14 clang-format-14 libclang-rt-14-dev) ;;
  *) echo "usage: deploy/install-deps.sh [--bench | --lint | --ops]" >&2; exit 64 ;;
esac

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ]; then
  echo "deploy/install-deps.sh: missing packages: ${missing[*]}" >&2
  echo "Run this once as root, or: apt-get install ${missing[*]}" >&2
  exit 1
fi
echo "Installing ${#missing[@]} Debian packages" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
