#!/usr/bin/env bash
# nibble for arm64 Linux on an x86-64 machine: Debian's cross compiler, Debian's arm64 packages in build/arm64-sysroot,
# the tests under qemu-user, which emulates all instructions that there are kernels for. Left out: what needs MPI's
# launcher, which starts its ranks without the emulator, and what takes too long in it.
#   bash tests/arm64.sh [ROOM ...]      ROOM: core_ops, quant, ... (all of them)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash tests/packages.sh g++-12-aarch64-linux-gnu qemu-user
bash tests/arm64_sysroot.sh
cmake --preset arm64 >/dev/null
cmake --build --preset arm64 --target nibble_cli

emulated=(qemu-aarch64 -cpu max -L build/arm64-sysroot)

echo "the package"
(cd build/arm64 && cpack -G DEB >/dev/null)
depends=$(dpkg-deb -f build/arm64/nibble_*_arm64.deb Depends)
for library in $(aarch64-linux-gnu-readelf -d build/arm64/bin/nibble | sed -nE 's/.*NEEDED.*\[(lib.*)\]/\1/p'); do
  package=$(sed -nE "s/^${library//+/\\+} //p" build/arm64-sysroot/.libraries)
  [[ ", $depends," =~ ", $package"[\ ,] ]] || { echo "error: $library is in no package of: $depends" >&2; exit 1; }
done
