#!/usr/bin/env bash
# Tests of nibble for arm64 Linux on an x86-64 machine: Debian's cross compiler, Debian's arm64 packages in
# build/arm64-sysroot, qemu-user, which emulates all instructions that there are kernels for. Builds the program and
# the package of it. An hour and a half on two cores; each room runs in 32 parts, as many at once as there are cores.
#   bash tests/arm64.sh [ROOM ...]      ROOM: a test program, core_ops for test_core_ops; by default all, and beside them
#                                       what other software computed (tests/outside.sh). Without tests that start
#                                       themselves with mpirun, which does not know the emulator, or kill a rank of it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rooms=("$@")

bash tests/packages.sh g++-12-aarch64-linux-gnu qemu-user
bash tests/arm64_sysroot.sh
cmake --preset arm64 >/dev/null
[ $# -gt 0 ] || mapfile -t rooms < <(ninja -C build/arm64 -t targets all | sed -n 's/^test_\(.*\): phony$/\1/p' | grep -vx assets)
cmake --build --preset arm64 --target nibble "${rooms[@]/#/test_}"
run_part() { # a room and the number of one of its parts, or "outside"
  [ "$1" != outside ] || { NIBBLE=build/arm64/emulated/nibble bash tests/outside.sh; return; }
  GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$2 qemu-aarch64 -cpu max -L build/arm64-sysroot \
    "build/arm64/bin/test_$1" --gtest_brief=1 --gtest_filter='-*MpiRanks.*:MpiComm.*:Launch.TwoProcesses*' 2>&1 |
    sed "s|^|$1 $2 of $parts: |"
}
export -f run_part
export parts=32
{
  [ $# -gt 0 ] || echo outside
  for room in "${rooms[@]}"; do seq -f "$room %g" 0 $((parts - 1)); done
} | xargs -P "$(nproc)" -L 1 bash -o pipefail -c 'run_part "$@"' run_part
[ $# -gt 0 ] && exit 0

(cd build/arm64 && cpack -G DEB >/dev/null)
[ "$(dpkg-deb --field build/arm64/nibble_*_arm64.deb Architecture)" = arm64 ]
dpkg-deb --field build/arm64/nibble_*_arm64.deb Depends
