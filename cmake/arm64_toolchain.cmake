# arm64 Linux by Debian's cross compiler, against the packages in build/arm64-sysroot (tests/arm64_sysroot.sh unpacks
# them); what is built runs here under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++-12)
get_filename_component(CMAKE_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../build/arm64-sysroot ABSOLUTE)
set(CMAKE_CROSSCOMPILING_EMULATOR /usr/bin/qemu-aarch64 -cpu max -L ${CMAKE_SYSROOT})

# The package is for arm64, and depends on the packages that the libraries in the sysroot are from.
set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu
                                                ${CMAKE_SYSROOT}/lib/aarch64-linux-gnu ${CMAKE_SYSROOT}/lib)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_LIST_DIR}/arm64_package.cmake)

set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
foreach(kind LIBRARY INCLUDE PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CMAKE_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig)
# What the compiler wrapper of MPI would say, but it is a program for arm64.
set(mpi ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/openmpi)
set(MPI_CXX_LIB_NAMES mpi CACHE STRING "")
set(MPI_mpi_LIBRARY ${mpi}/lib/libmpi.so CACHE FILEPATH "")
set(MPI_CXX_COMPILER_INCLUDE_DIRS ${mpi}/include CACHE STRING "")
set(MPI_CXX_SKIP_MPICXX ON CACHE BOOL "")
