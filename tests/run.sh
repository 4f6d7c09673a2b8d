#!/usr/bin/env bash
# Passes on a bare Debian 12 machine: installs packages, configures, builds, runs the tests, checks the format.
#   bash tests/run.sh [PRESET]      PRESET: release (default), debug, asan, tsan, portable
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=${1:-release}

bash tests/packages.sh
cmake --preset "$preset" >/dev/null
cmake --build "build/$preset"
ctest --test-dir "build/$preset" --output-on-failure -j "$(nproc)"

echo "checking the format"
find . -path ./build -prune -o \( -name '*.h' -o -name '*.cpp' \) -print |
  xargs clang-format-14 --dry-run --Werror
echo "all passed"
