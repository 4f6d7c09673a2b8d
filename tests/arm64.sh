#!/usr/bin/env bash
# nibble for arm64 Linux on an x86-64 machine: Debian's cross compiler, Debian's arm64 packages in build/arm64-sysroot,
# tests under qemu-user, which emulates all instructions that there are kernels for. Without what needs several MPI
# processes: mpirun would start them without the emulator.
#   bash tests/arm64.sh [ROOM ...]      ROOM: a test program, core_ops for test_core_ops
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rooms=("$@")
[ $# -gt 0 ] || rooms=(core_base core_tensor core_ops quant core_nn core_models)

bash tests/packages.sh g++-12-aarch64-linux-gnu qemu-user
bash tests/arm64_sysroot.sh
cmake --preset arm64 >/dev/null
emulated=(qemu-aarch64 -cpu max -L build/arm64-sysroot)
for room in "${rooms[@]}"; do
  cmake --build --preset arm64 --target "test_$room"
  "${emulated[@]}" "build/arm64/bin/test_$room" --gtest_brief=1 --gtest_filter='-*Mpi*:Launch*'
done

cmake --build --preset arm64 --target nibble_cli nibble nibble_mpi
"${emulated[@]}" build/arm64/bin/nibble doctor
(cd build/arm64 && cpack -G DEB >/dev/null)
depends=$(dpkg-deb -f build/arm64/nibble_*_arm64.deb Depends)
for library in $(aarch64-linux-gnu-readelf -d build/arm64/bin/nibble | sed -nE 's/.*NEEDED.*\[(lib.*)\]/\1/p'); do
  package=$(awk -v library="$library" '$1 == library {print $2}' build/arm64-sysroot/.libraries)
  [[ ", $depends," =~ ", $package"[\ ,] ]] || { echo "error: $library is in no package of: $depends" >&2; exit 1; }
done
echo "arm64: ${rooms[*]} passed, and $(ls build/arm64/nibble_*_arm64.deb) is made"
