#!/usr/bin/env bash
# Installs the Debian 12 packages that nibble is built from, those named as arguments, and nothing else. Does nothing
# when all are there.
set -euo pipefail

packages=(
  g++ cmake ninja-build pkg-config clang-format-14 python3
  libopenblas-openmp-dev libeigen3-dev libhwy-dev libsentencepiece-dev nlohmann-json3-dev libcli11-dev
  libopenmpi-dev openmpi-bin mpich libmpich-dev iproute2 libonig-dev libicu-dev libxxhash-dev
  zlib1g-dev libzstd-dev libsnappy-dev libgmp-dev libyaml-cpp-dev libedit-dev
  libgtest-dev libgmock-dev libbenchmark-dev libsimde-dev dpkg-dev file "$@"
)

missing=()
for package in "${packages[@]}"; do
  [[ $(dpkg-query -W -f='${Status}' "$package" 2>/dev/null) == *'install ok installed'* ]] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "error: ${missing[*]} are missing; install them as root" >&2; exit 1; }
  as_root=(sudo)
fi
echo "installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
