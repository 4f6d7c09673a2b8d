# Read by cpack: dpkg-shlibdeps then reads programs and packages of the sysroot, not of this machine.
set(ENV{DEB_HOST_ARCH} arm64)
set(ENV{DPKG_ADMINDIR} ${CMAKE_CURRENT_LIST_DIR}/../build/arm64-sysroot/var/lib/dpkg)
