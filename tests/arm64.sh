#!/usr/bin/env bash
# Tests of nibble for arm64 Linux on an x86-64 machine: Debian's cross compiler, Debian's arm64 packages in
# build/arm64-sysroot, qemu-user, which emulates all instructions that there are kernels for.
#   bash tests/arm64.sh [ROOM ...]      ROOM: a test program, core_ops for test_core_ops; by default those of
#                                       tests/RECORD.md. Not parallel: mpirun starts ranks without the emulator.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rooms=("$@")
[ $# -gt 0 ] || rooms=(core_base core_ops quant)

bash tests/packages.sh g++-12-aarch64-linux-gnu qemu-user
bash tests/arm64_sysroot.sh
cmake --preset arm64 >/dev/null
for room in "${rooms[@]}"; do
  cmake --build --preset arm64 --target "test_$room"
  qemu-aarch64 -cpu max -L build/arm64-sysroot "build/arm64/bin/test_$room" --gtest_brief=1
done
