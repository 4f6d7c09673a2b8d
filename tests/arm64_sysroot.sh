#!/usr/bin/env bash
# Unpacks Debian's arm64 packages that nibble is built from into a folder, for the cross compiler and for qemu-user.
# Needs no root and leaves the packages of this machine alone: apt has its state in the folder, and the Debian mirrors
# that this machine uses.
#   bash tests/arm64_sysroot.sh [FOLDER]      FOLDER: build/arm64-sysroot
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p "${1:-build/arm64-sysroot}"
sysroot=$(cd "${1:-build/arm64-sysroot}" && pwd)

packages=(
  libc6-dev libstdc++-12-dev libgomp1
  libopenblas-openmp-dev libeigen3-dev libhwy-dev libsentencepiece-dev nlohmann-json3-dev libcli11-dev libopenmpi-dev
  libonig-dev libicu-dev libxxhash-dev zlib1g-dev libzstd-dev libsnappy-dev libgmp-dev libyaml-cpp-dev libedit-dev
  libgtest-dev libgmock-dev
)
database=$sysroot/var/lib/dpkg
[ "$(cat "$sysroot/.packages" 2>/dev/null)" = "${packages[*]}" ] && [ -d "$database" ] && exit 0

state=$sysroot/.apt
rm -rf "$state"
mkdir -p "$state"/{lists,archives}/partial
: >"$state/status"
cat >"$state/apt.conf" <<CONF
#clear APT::Update;
#clear DPkg;
#clear APT::Architectures;
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "$(id -un)";
Dir::State "$state";
Dir::State::status "$state/status";
Dir::Cache "$state";
Dir::Etc::sourcelist "$state/sources.list";
Dir::Etc::sourceparts "/dev/null";
CONF
apt-get indextargets 'ORIGIN: Debian' 'IDENTIFIER: Packages' --format \
  'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(REPO_URI) $(RELEASE) $(COMPONENT)' |
  sort -u >"$state/sources.list"
[ -s "$state/sources.list" ] || { echo "error: apt knows no mirror of Debian; run apt-get update" >&2; exit 1; }

echo "unpacking arm64 packages into $sysroot"
apt-get -c "$state/apt.conf" -qq update
apt-get -c "$state/apt.conf" -qq --yes --download-only install "${packages[@]}" >/dev/null
# What dpkg-shlibdeps asks for the packages of libraries (cmake/arm64_package.cmake).
rm -rf "$database"
mkdir -p "$database/info"
printf '%s\n' "$(dpkg --print-architecture)" arm64 >"$database/arch"
for archive in "$state"/archives/*.deb; do
  dpkg-deb -x "$archive" "$sysroot"
  package=$(dpkg-deb -f "$archive" Package)
  { dpkg-deb -f "$archive" Package Version Architecture Maintainer Description
    printf 'Status: install ok installed\n\n'; } >>"$database/status"
  dpkg-deb --fsys-tarfile "$archive" | tar -t | sed "s|^\.|$sysroot|; s|/$||" >"$database/info/$package.list"
  for file in symbols shlibs; do
    dpkg-deb -I "$archive" $file >"$database/info/$package.$file" 2>/dev/null || rm "$database/info/$package.$file"
  done
done
rm -rf "$state"
# Links from the root are this machine's, and what chooses between packages of OpenBLAS has not run.
while read -r link target; do ln -sfn "$sysroot$target" "$link"; done < <(find "$sysroot" -lname '/*' -printf '%p %l\n')
ln -sf openblas-openmp/libopenblas.so.0 openblas-openmp/libopenblas.so "$sysroot/usr/lib/aarch64-linux-gnu"
ln -sf ../openblas-openmp/pkgconfig/openblas.pc "$sysroot/usr/lib/aarch64-linux-gnu/pkgconfig"
echo "${packages[*]}" >"$sysroot/.packages"
