# cpack -G DEB in the build folder, after nibble_cli is built: one package that installs and runs on a bare Debian 12
# machine. It does not build the tests first.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY TRUE)
set(CPACK_PACKAGE_NAME nibble)
set(CPACK_PACKAGE_VENDOR nibble)
set(CPACK_PACKAGE_CONTACT "nibble")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_GENERATOR DEB)
set(CPACK_STRIP_FILES TRUE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS TRUE)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libopenblas0")  # loaded at run time, unseen by shlibdeps
# Only programs that are built on the library need these.
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libopenblas-openmp-dev, libeigen3-dev, libhwy-dev, libsentencepiece-dev, nlohmann-json3-dev, libcli11-dev, libonig-dev, libicu-dev, libxxhash-dev, zlib1g-dev, libzstd-dev, libsnappy-dev, libgmp-dev, libyaml-cpp-dev, libedit-dev, openmpi-bin")
include(CPack)
