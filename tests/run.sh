#!/usr/bin/env bash
# Passes on a bare Debian 12 machine: installs packages, configures, builds, runs the tests, checks the format.
#   bash tests/run.sh [PRESET]      PRESET: release (default), debug, asan, tsan, portable
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=${1:-release}

more=()
[ "$preset" = tsan ] && more=(clang-14 libclang-rt-14-dev libomp-14-dev)
bash tests/packages.sh "${more[@]}"
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset"
ctest --preset "$preset" -j "$(nproc)"

echo "checking the format"
find . -path ./build -prune -o \( -name '*.h' -o -name '*.cpp' \) -print |
  xargs clang-format-14 --dry-run --Werror
echo "all passed"
