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
# Tests save thousands of times and wait for the disk, and for signals: files in memory where there is room, and four
# more at a time.
room=$(df --output=avail --block-size=G /dev/shm 2>/dev/null | tail -n 1 | tr -dc '[:digit:]' || true)
if [ -z "${TMPDIR:-}" ] && [ "${room:-0}" -ge 4 ]; then export TMPDIR=/dev/shm; fi
ctest --preset "$preset" -j "$(($(nproc) + 4))"

echo "checking the format"
find . -path ./build -prune -o \( -name '*.h' -o -name '*.cpp' \) -print |
  xargs clang-format-14 --dry-run --Werror
echo "all passed"
